//! The serve configuration of an Ingress: which path leads where.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::annotation::IngressRequest;

/// The proxy puts its name here once it has one.
const NAME: &str = "${TS_CERT_DOMAIN}";

/// The serve configuration, JSON. `handlers` are paths and the addresses that they lead to.
pub fn serve_config(request: &IngressRequest, handlers: &BTreeMap<String, String>) -> String {
    let https = format!("{NAME}:443");
    let http = format!("{NAME}:80");
    let proxies: Map<String, Value> =
        handlers.iter().map(|(path, url)| (path.clone(), json!({ "Proxy": url }))).collect();
    let mut tcp = json!({ "443": { "HTTPS": true } });
    let mut web = json!({ &https: { "Handlers": proxies } });
    let mut funnel = json!({ &https: true });
    if request.redirect {
        let to = json!({ "Redirect": "301:https://${HOST}${REQUEST_URI}" });
        let redirects: Map<String, Value> =
            handlers.keys().map(|path| (path.clone(), to.clone())).collect();
        for (all, key, value) in [
            (&mut tcp, "80", json!({ "HTTP": true })),
            (&mut web, http.as_str(), json!({ "Handlers": redirects })),
            (&mut funnel, http.as_str(), json!(true)),
        ] {
            if let Some(all) = all.as_object_mut() {
                all.insert(key.to_owned(), value);
            }
        }
    }
    let mut config = json!({ "TCP": tcp, "Web": web });
    if let Some(config) = config.as_object_mut().filter(|_| request.funnel) {
        config.insert("AllowFunnel".into(), funnel);
    }
    config.to_string()
}
