//! Desired rules into force: whenever the tailnet, the configuration or a name changes, the document is resolved anew, and
//! if that gives another table than the one in force, the engine applies it. One bad entry holds up no other.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use nix::net::if_::if_nametoindex;
use proxy_rules::{
    config::{Document, PathKind},
    validate,
};
use tokio::{sync::watch, time};

use super::{
    aside::{self, Compiled},
    confine,
    names::Names,
    resolve::{self, Facts, Resolved, Target},
    settings::Ports,
    view::View,
};
use crate::{engine::Applied, localapi::State, shared::Shared};

/// How long a burst of changes may go on before it is acted on.
const DEBOUNCE: Duration = Duration::from_millis(10);
/// Between two applies: this many times what the last one took, so that a tailnet in turmoil costs a bounded share of a CPU.
const IDLE_SHARE: u32 = 4;
/// But never longer: an apply may have waited for a busy kernel.
const LONGEST_PAUSE: Duration = Duration::from_millis(200);
/// How often a device that tailscaled has yet to make is looked for.
const DEVICE_POLL: Duration = Duration::from_millis(50);

/// What the rules are made from, shared with those who learn of changes.
#[derive(Debug)]
pub struct Inputs {
    /// The tailnet.
    pub view: Arc<Mutex<View>>,
    /// Counts changes of the tailnet.
    pub tailnet: watch::Receiver<u64>,
    /// The document with words and names.
    pub document: watch::Receiver<Document>,
    /// The cluster's names as last looked up.
    pub names: watch::Receiver<Names>,
    /// The pod's addresses.
    pub pod: Vec<IpAddr>,
    /// Where there is no TUN device: the ports of targets that name none.
    pub confined: Option<Ports>,
}

/// What is in force.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Installed {
    /// The generation of the table that these targets are of.
    pub generation: Option<String>,
    /// The node's addresses when these rules were made.
    pub own: Vec<IpAddr>,
    /// Every target, and why those without traffic have none.
    pub targets: Vec<Target>,
    /// Why the latest table is not in force.
    pub error: Option<String>,
}

/// Keeps the engine's table equal to what is desired. Ends when nobody can change anything any more.
pub async fn run(
    shared: Arc<Shared>,
    mut inputs: Inputs,
    only: Option<PathKind>,
    installed: watch::Sender<Installed>,
) {
    let mut engine = shared.engine.changes();
    let mut is_first = true;
    let mut installer = Installer { shared, only, tried: None, in_force: None, installed };
    loop {
        let took = match installer.install(&inputs).await {
            Step::Done(took) => took,
            // The devices come with tailscaled; nobody tells.
            Step::Wait => match time::timeout(DEVICE_POLL, inputs.tailnet.changed()).await {
                Ok(Err(_)) => return,
                Ok(Ok(())) | Err(_) => continue,
            },
            Step::End => return,
        };
        let more = tokio::select! {
            changed = inputs.tailnet.changed() => changed.is_ok(),
            changed = inputs.document.changed() => changed.is_ok(),
            changed = inputs.names.changed() => changed.is_ok(),
            // What it could not do at first it may have done meanwhile.
            changed = engine.changed() => changed.is_ok(),
        };
        if !more {
            return;
        }
        // The first apply loads programs; what came meanwhile is what the pod is for.
        let pause = if std::mem::take(&mut is_first) { Duration::ZERO } else { took * IDLE_SHARE };
        time::sleep(pause.clamp(DEBOUNCE, LONGEST_PAUSE)).await;
    }
}

enum Step {
    Done(Duration),
    Wait,
    End,
}

struct Installer {
    shared: Arc<Shared>,
    only: Option<PathKind>,
    /// The generation that the engine was given last.
    tried: Option<String>,
    /// What the table in force was made of.
    in_force: Option<Document>,
    installed: watch::Sender<Installed>,
}

impl Installer {
    async fn install(&mut self, inputs: &Inputs) -> Step {
        let document = inputs.document.borrow().clone();
        let interfaces = &document.settings.interfaces;
        let mut devices = interfaces.tailnet.iter().chain(&interfaces.cluster);
        let is_absent = |device: &String| if_nametoindex(device.as_str()).is_err();
        // tailscaled's device comes with it, and comes back with it; another path is no remedy meanwhile.
        if self.only != Some(PathKind::Userspace) && devices.any(is_absent) {
            return Step::Wait;
        }
        if self.tried.is_none() && !is_known(&document, inputs) {
            return Step::Wait;
        }
        let (resolved, own) = desired(&document, inputs);
        let compiled = match aside::compile(resolved, self.in_force.as_ref()) {
            Ok(compiled) => compiled,
            Err(errors) => {
                self.refuse(&errors);
                return Step::Done(Duration::ZERO);
            }
        };
        let Compiled { mut config, resolved: Resolved { document, targets }, errors } = compiled;
        if let Some(only) = self.only {
            config.options.data_paths = vec![only];
        }
        let generation = config.table.generation().to_owned();
        let mut took = Duration::ZERO;
        if self.tried.as_ref() != Some(&generation) {
            self.tried = Some(generation.clone());
            let applied: Applied = match self.shared.engine.apply(config).await {
                Ok(applied) => applied,
                Err(_) => return Step::End,
            };
            // Why not, if so, is logged by the engine, which tries again by itself.
            if let Ok(elapsed) = applied {
                took = elapsed;
                self.shared.apply_seconds.observe(elapsed.as_secs_f64());
            }
        }
        let state = self.shared.engine.state();
        let in_force = state.table.as_ref().map(|table| table.generation().to_owned());
        if in_force.as_ref() == Some(&generation) {
            self.shared.update_config(|status| {
                status.set_errors(errors.iter());
                status.generation = Some(generation);
            });
            self.in_force = Some(document);
            self.report(Installed { generation: in_force, own, targets, error: None });
        } else {
            self.installed.send_modify(|installed| installed.error.clone_from(&state.error));
        }
        Step::Done(took)
    }

    /// A document that is not valid changes nothing but what is reported.
    fn refuse(&self, errors: &validate::Errors) {
        let text = errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
        self.shared.update_config(|config| config.set_errors(errors.iter()));
        self.installed.send_if_modified(|installed| {
            if installed.error.as_ref() == Some(&text) {
                return false;
            }
            tracing::error!("the rules are not valid, those in force stay: {text}");
            installed.error = Some(text);
            true
        });
    }

    fn report(&self, now: Installed) {
        self.installed.send_if_modified(|installed| {
            tell(&installed.targets, &now.targets);
            let changed = *installed != now;
            *installed = now;
            changed
        });
    }
}

/// Whether enough is known for a first table. What an earlier process has left in force carries its flows; a table without the
/// node's addresses, its peers or the cluster's names would end them.
fn is_known(document: &Document, inputs: &Inputs) -> bool {
    let view = inputs.view.lock().unwrap_or_else(PoisonError::into_inner);
    let names = inputs.names.borrow();
    view.state == Some(State::Running)
        && view.own.is_some()
        && resolve::names(document).iter().all(|name| names.contains_key(name))
}

/// What is desired, and the node's addresses that it was made with.
fn desired(document: &Document, inputs: &Inputs) -> (Resolved, Vec<IpAddr>) {
    let view = inputs.view.lock().unwrap_or_else(PoisonError::into_inner);
    let names = inputs.names.borrow();
    let facts = Facts { view: &view, pod: &inputs.pod, names: &names };
    let mut resolved = resolve::resolve(document, &facts);
    if let Some(ports) = &inputs.confined {
        confine::confine(&mut resolved, ports);
    }
    (resolved, view.addresses())
}

/// Logs what has become of targets: each change once.
fn tell(before: &[Target], now: &[Target]) {
    let key = |target: &Target| (target.entry.clone(), target.target.clone());
    let before: HashMap<_, _> = before.iter().map(|target| (key(target), target)).collect();
    for target in now {
        let (entry, name) = (&target.entry, &target.target);
        let old = before.get(&key(target));
        if old.is_some_and(|old| *old == target) {
            continue;
        }
        let addresses = &target.addresses;
        if let Some(trouble) = &target.trouble {
            let reason = trouble.reason;
            let what = if trouble.partial { "not whole" } else { "no traffic" };
            tracing::warn!(entry, target = name, reason, "{what}: {}", trouble.message);
        } else {
            tracing::info!(entry, target = name, ?addresses, "in force");
        }
    }
}
