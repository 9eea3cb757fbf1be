use super::*;

fn names(all: &[&str]) -> Vec<ServiceName> {
    all.iter().map(|name| name.parse().unwrap()).collect()
}

#[test]
fn files_are_read_as_they_are_written_and_what_is_none_is_empty() {
    let entries = BTreeMap::from([("svc:web".to_owned(), json!({ "TCP": {} }))]);
    for file in [File::Serve, File::Ingress] {
        let text = file.content(&entries);
        assert_eq!(file.entries(text.as_bytes()), entries);
        for broken in ["", "null", "[]", "{", r#"{"Services":[]}"#] {
            let read = file.entries(broken.as_bytes());
            assert!(read.is_empty() || file == File::Ingress, "{broken}: {read:?}");
        }
    }
    assert_eq!(File::Serve.content(&BTreeMap::new()), r#"{"Services":{}}"#);
}

#[test]
fn a_family_that_one_side_lacks_is_left_out() {
    let all: Vec<IpAddr> = vec!["100.99.1.2".parse().unwrap(), "fd7a::1".parse().unwrap()];
    let v4: Vec<IpAddr> = vec!["10.0.3.4".parse().unwrap()];
    let mapping = serde_json::to_value(Mapping::between(&all, &v4)).unwrap();
    let wanted =
        json!({ "IPv4Mapping": { "TailscaleServiceIP": "100.99.1.2", "ClusterIP": "10.0.3.4" } });
    assert_eq!(mapping, wanted);
    assert_eq!(Mapping::between(&v4, &[]), Mapping::default());
    let v6: Vec<IpAddr> = vec!["fd00::9".parse().unwrap()];
    let mapping = Mapping::between(&all, &v6);
    assert_eq!(mapping.ipv4, None);
    assert_eq!(mapping.ipv6.unwrap().to.to_string(), "fd00::9");
}

#[test]
fn an_ingress_is_served_at_443_and_as_asked_at_80() {
    let handlers = BTreeMap::from([("/a".to_owned(), "http://10.0.0.1:80/a".to_owned())]);
    let proxies = json!({ "Handlers": { "/a": { "Proxy": "http://10.0.0.1:80/a" } } });
    let plain = served("web.t.net", &handlers, PlainHttp::None);
    let wanted =
        json!({ "TCP": { "443": { "HTTPS": true } }, "Web": { "web.t.net:443": proxies } });
    assert_eq!(plain, wanted);
    let both = served("web.t.net", &handlers, PlainHttp::Serve);
    assert_eq!(both["Web"]["web.t.net:80"], proxies);
    assert_eq!(both["TCP"]["80"], json!({ "HTTP": true }));
    let redirect = served("web.t.net", &handlers, PlainHttp::Redirect);
    let to = json!({ "/a": { "Redirect": "301:https://${HOST}${REQUEST_URI}" } });
    assert_eq!(redirect["Web"]["web.t.net:80"]["Handlers"], to);
    assert_eq!(redirect["Web"]["web.t.net:443"], proxies);
}

#[test]
fn a_configuration_keeps_what_is_not_changed() {
    let config = br#"{"Version":"alpha0","AuthKey":"k","AdvertiseServices":["svc:b","svc:a"]}"#;
    assert_eq!(offering(config, &names(&["svc:a", "svc:b"])), None, "in any order");
    let changed = offering(config, &names(&["svc:c"])).unwrap();
    assert_eq!(offered(&changed), ["svc:c"]);
    let none: Value = serde_json::from_slice(&offering(config, &[]).unwrap()).unwrap();
    assert_eq!(none, json!({ "Version": "alpha0", "AuthKey": "k" }));
    assert_eq!(offering(b"{}", &[]), None);
    assert_eq!(offering(b"no", &names(&["svc:a"])), None, "what cannot be read is left alone");
}
