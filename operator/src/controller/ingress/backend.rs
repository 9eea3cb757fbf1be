//! Where the paths of an Ingress lead.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use k8s_openapi::api::{
    core::v1::Service,
    networking::v1::{Ingress, IngressBackend, IngressServiceBackend},
};
use kube::{ResourceExt as _, runtime::reflector::ObjectRef};

use super::status::Notice;
use crate::{annotation::IngressRequest, context::Context};

const REFUSED: &str = "InvalidIngressBackend";

/// Paths with the addresses that they lead to, and what users are told of the others.
pub(in crate::controller) struct Handlers {
    pub(in crate::controller) handlers: BTreeMap<String, String>,
    pub(in crate::controller) notices: Vec<Notice>,
}

/// The names of all Services that an Ingress names.
pub(in crate::controller) fn names(ingress: &Ingress) -> impl Iterator<Item = &String> {
    let spec = ingress.spec.as_ref();
    let rules = spec.and_then(|spec| spec.rules.as_ref()).into_iter().flatten();
    let paths = rules.filter_map(|rule| rule.http.as_ref()).flat_map(|http| &http.paths);
    let default = spec.and_then(|spec| spec.default_backend.as_ref());
    default
        .into_iter()
        .chain(paths.map(|path| &path.backend))
        .filter_map(|backend| backend.service.as_ref().map(|service| &service.name))
}

/// Those that exist.
pub(in crate::controller) fn services(
    ingress: &Ingress,
    context: &Context,
) -> BTreeMap<String, Arc<Service>> {
    let namespace = ingress.namespace().unwrap_or_default();
    let find = |name: &String| {
        let service = context.cache.backends.get(&ObjectRef::new(name).within(&namespace))?;
        Some((name.clone(), service))
    };
    names(ingress).filter_map(find).collect()
}

/// The default backend first: a rule for `/` comes before it.
pub(in crate::controller) fn handlers(
    ingress: &Ingress,
    request: &IngressRequest,
    services: &BTreeMap<String, Arc<Service>>,
) -> Handlers {
    let mut all = Handlers { handlers: BTreeMap::new(), notices: Vec::new() };
    let Some(spec) = &ingress.spec else { return all };
    if let Some(backend) = &spec.default_backend {
        all.add("/", backend, services);
    }
    for rule in spec.rules.iter().flatten() {
        let host = rule.host.as_deref().filter(|host| !host.is_empty());
        if let Some(host) = host.filter(|host| request.host.as_deref() != Some(host)) {
            all.notices.push(Notice::warning(
                REFUSED,
                format!("the rule for host `{host}` is not served: a proxy has one name, the first of spec.tls[0].hosts; leave the host out, or make an Ingress of its own for it"),
            ));
            continue;
        }
        for path in rule.http.iter().flat_map(|http| &http.paths) {
            if path.path_type == "Exact" {
                all.notices.push(Notice::warning(
                    "UnsupportedPathTypeExact",
                    format!(
                        "path `{}` is served as a prefix: Exact is not supported",
                        path.path.as_deref().unwrap_or("/")
                    ),
                ));
            }
            let text = path.path.as_deref().filter(|path| !path.is_empty());
            if text.is_none() {
                let told = "a backend has no path: it is served at `/`";
                all.notices.push(Notice::normal("PathUndefined", told));
            }
            all.add(text.unwrap_or("/"), &path.backend, services);
        }
    }
    all
}

impl Handlers {
    fn add(
        &mut self,
        path: &str,
        backend: &IngressBackend,
        services: &BTreeMap<String, Arc<Service>>,
    ) {
        match url(path, backend.service.as_ref(), services) {
            Ok(url) => drop(self.handlers.insert(path.to_owned(), url)),
            Err(why) => {
                self.notices
                    .push(Notice::warning(REFUSED, format!("path `{path}` is not served: {why}")));
            }
        }
    }
}

/// Where a path leads, or why nowhere. The path is there again, since what serves it takes it away.
fn url(
    path: &str,
    backend: Option<&IngressServiceBackend>,
    services: &BTreeMap<String, Arc<Service>>,
) -> Result<String, String> {
    let backend = backend.ok_or("its backend is no Service: only Services are supported")?;
    let name = &backend.name;
    let service = services.get(name).ok_or_else(|| {
        format!("Service `{name}` does not exist in the Ingress's namespace: create it")
    })?;
    let spec = service.spec.as_ref();
    let address: IpAddr = spec
        .and_then(|spec| spec.cluster_ip.as_ref()?.parse().ok())
        .ok_or_else(|| format!("Service `{name}` has no cluster IP: headless Services and external names are not supported here"))?;
    let wanted = backend.port.as_ref();
    let by_name = wanted.and_then(|port| port.name.as_deref()).filter(|name| !name.is_empty());
    let number = match by_name {
        Some(port) => spec
            .and_then(|spec| spec.ports.as_ref())
            .into_iter()
            .flatten()
            .find(|own| own.name.as_deref() == Some(port))
            .map(|own| own.port)
            .ok_or_else(|| format!("Service `{name}` has no port `{port}`: correct the name"))?,
        None => wanted.and_then(|port| port.number).unwrap_or_default(),
    };
    let number = u16::try_from(number).ok().filter(|number| *number != 0);
    let number =
        number.ok_or_else(|| format!("the port of Service `{name}` is missing: name one"))?;
    let tls = number == 443 || by_name == Some("https");
    let scheme = if tls { "https+insecure" } else { "http" };
    Ok(format!("{scheme}://{}{path}", SocketAddr::new(address, number)))
}
