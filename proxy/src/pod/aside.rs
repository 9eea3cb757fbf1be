//! One bad entry holds up no other: what validation refuses is left out of the table, or stays as it last was in force, and
//! its targets say so; the rest of the document is compiled.

use proxy_rules::{
    config::{Config, Document, Route, Service},
    validate::{self, ConfigError, Errors},
};

use super::resolve::{Resolved, Target, Trouble};

/// A table, and what it was made of.
#[derive(Debug)]
pub(super) struct Compiled {
    /// With its options.
    pub(super) config: Config,
    /// Without what could not be compiled.
    pub(super) resolved: Resolved,
    /// What was wrong.
    pub(super) errors: Vec<ConfigError>,
}

/// Compiles what can be compiled. `before` is the document in force: an entry that was good there stays as it was. An error that
/// belongs to no entry is one of the whole document.
pub(super) fn compile(
    mut resolved: Resolved,
    before: Option<&Document>,
) -> Result<Compiled, Errors> {
    let mut errors: Vec<ConfigError> = Vec::new();
    // Each turn leaves one entry out or puts one back, and none twice.
    let mut restored = Vec::new();
    loop {
        let found = match validate::compile(&resolved.document) {
            Ok(config) => return Ok(Compiled { config, resolved, errors }),
            Err(found) => found,
        };
        let Some((error, (list, index))) =
            found.iter().find_map(|error| Some((error, place(&error.path)?)))
        else {
            return Err(found);
        };
        let document = &mut resolved.document;
        let name = match list {
            "ingress" => {
                let old = before.map(|before| before.ingress.as_slice());
                set_aside(&mut document.ingress, index, old, &mut restored)
            }
            "egress" => {
                let old = before.map(|before| before.egress.as_slice());
                set_aside(&mut document.egress, index, old, &mut restored)
            }
            "routes" => {
                let old = before.map(|before| before.routes.as_slice());
                set_aside(&mut document.routes, index, old, &mut restored)
            }
            _ => None,
        };
        let Some((name, stays)) = name else { return Err(found) };
        let rest = if stays { "what was in force before stays" } else { "it gets no traffic" };
        let message = format!("{error}; {rest}");
        for target in resolved.targets.iter_mut().filter(|target| target.entry == name) {
            mark(target, &message, stays);
        }
        errors.push(error.clone());
    }
}

fn mark(target: &mut Target, message: &str, partial: bool) {
    target.trouble = Some(Trouble { reason: "invalid", message: message.to_owned(), partial });
}

/// `ingress[3].ports[0].port` -> `ingress`, 3.
fn place(path: &str) -> Option<(&str, usize)> {
    let (list, rest) = path.split_once('[')?;
    let (index, _) = rest.split_once(']')?;
    Some((list, index.parse().ok()?))
}

trait Entry: Clone {
    fn name(&self) -> &str;
}

impl Entry for Service {
    fn name(&self) -> &str {
        &self.name
    }
}

impl Entry for Route {
    fn name(&self) -> &str {
        &self.name
    }
}

/// Puts an entry's version before in its place, once, or takes it out. Returns its name and whether it stays.
fn set_aside<T: Entry>(
    entries: &mut Vec<T>,
    index: usize,
    before: Option<&[T]>,
    restored: &mut Vec<String>,
) -> Option<(String, bool)> {
    let entry = entries.get_mut(index)?;
    let name = entry.name().to_owned();
    let old = before.and_then(|before| before.iter().find(|old| old.name() == name));
    match old {
        Some(old) if !restored.contains(&name) => {
            old.clone_into(entry);
            restored.push(name.clone());
            Some((name, true))
        }
        _ => {
            entries.remove(index);
            Some((name, false))
        }
    }
}

#[cfg(test)]
mod tests {
    use proxy_rules::config::{Backend, PortMap};

    use super::*;

    fn service(name: &str, frontend: &str, backend: &str) -> Service {
        Service {
            name: name.to_owned(),
            frontends: vec![frontend.to_owned()],
            ports: vec![PortMap::default()],
            backends: vec![Backend { address: backend.to_owned(), ..Backend::default() }],
            ..Service::default()
        }
    }

    fn resolved(services: &[Service]) -> Resolved {
        let target = |service: &Service| Target {
            entry: service.name.clone(),
            target: service.backends[0].address.clone(),
            addresses: Vec::new(),
            trouble: None,
        };
        let mut resolved = Resolved::default();
        resolved.document.settings.interfaces.tailnet = vec!["tailscale0".to_owned()];
        resolved.document.settings.interfaces.cluster = vec!["eth0".to_owned()];
        resolved.document.ingress = services.to_vec();
        resolved.targets = services.iter().map(target).collect();
        resolved
    }

    fn names(compiled: &Compiled) -> Vec<&str> {
        compiled.resolved.document.ingress.iter().map(|service| service.name.as_str()).collect()
    }

    #[test]
    fn a_service_that_another_has_the_address_of_is_left_out_and_says_so() {
        let good = service("svc:good", "100.64.0.9", "10.0.0.1");
        let twin = service("svc:twin", "100.64.0.9", "10.0.0.2");
        let compiled = compile(resolved(&[good, twin]), None).unwrap();
        assert_eq!(names(&compiled), ["svc:good"]);
        assert_eq!(compiled.errors.len(), 1);
        let [good, twin] = compiled.resolved.targets.as_slice() else { panic!("two targets") };
        assert_eq!(good.trouble, None);
        let trouble = twin.trouble.as_ref().unwrap();
        assert!(trouble.reason == "invalid" && trouble.message.contains("svc:good"), "{trouble:?}");
        assert!(!twin.is_served());
    }

    #[test]
    fn a_service_that_was_good_stays_as_it_was() {
        let before = resolved(&[service("svc:a", "100.64.0.9", "10.0.0.1")]).document;
        let now = resolved(&[service("svc:a", "100.64.0.9", "0.0.0.0")]);
        let compiled = compile(now, Some(&before)).unwrap();
        assert_eq!(compiled.resolved.document.ingress, before.ingress);
        assert!(compiled.resolved.targets[0].is_served());
        assert!(compiled.resolved.targets[0].trouble.is_some());
    }

    #[test]
    fn what_is_wrong_with_the_document_is_wrong_with_all_of_it() {
        let mut resolved = resolved(&[service("svc:a", "100.64.0.9", "10.0.0.1")]);
        resolved.document.settings.protected_sources = vec!["nonsense".to_owned()];
        let errors = compile(resolved, None).unwrap_err();
        assert!(errors.iter().all(|error| error.path.starts_with("settings")), "{errors}");
    }
}
