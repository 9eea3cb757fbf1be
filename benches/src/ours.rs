//! Sluice's own data paths on a lane, through the crate that ships: the same code, nothing short-cut.

use std::{
    net::IpAddr,
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{RecvTimeoutError, Sender, channel},
    },
    thread::JoinHandle,
    time::Duration,
};

use anyhow::{Context, Result};
use proxy::data_path::DataPath;
use proxy_rules::{
    Action, Affinity, Backend, BackendState, Backends, Interfaces, Match, PortRange, Protocol,
    Rule, RuleId, RuleTable, Settings, Side, Snapshot, Snat,
};

use crate::{generator::BACKEND_PORT, netns::Netns, rig::Lane, rival};

/// A data path in force in a router, looked after once a second as the agent does. Removed when dropped.
pub struct Installed {
    path: Arc<Mutex<Box<dyn DataPath>>>,
    agent: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Installed {
    /// Puts the table in force in the router's namespace.
    pub fn new(
        router: &Netns,
        make: impl FnOnce() -> Result<Box<dyn DataPath>> + Send,
        table: &RuleTable,
    ) -> Result<Self> {
        let path = router.run(|| {
            let mut path = make()?;
            path.apply(table)?;
            Ok(Arc::new(Mutex::new(path)))
        })?;
        let (stop, stopped) = channel();
        let (ready, is_ready) = channel();
        let maintained = Arc::clone(&path);
        let entrance = router.try_clone()?;
        let agent = std::thread::spawn(move || {
            ready.send(entrance.enter()).ok();
            while stopped.recv_timeout(Duration::from_secs(1)) == Err(RecvTimeoutError::Timeout) {
                let mut path = maintained.lock().unwrap_or_else(PoisonError::into_inner);
                if let Err(error) = path.maintain() {
                    eprintln!("maintaining the {} path: {error}", path.kind());
                }
            }
            let mut path = maintained.lock().unwrap_or_else(PoisonError::into_inner);
            if let Err(error) = path.remove() {
                eprintln!("removing the {} path: {error}", path.kind());
            }
        });
        is_ready.recv().context("the agent's thread did not start")??;
        Ok(Self { path, agent: Some((stop, agent)) })
    }

    /// Works with the path in the router's namespace.
    pub fn with<T: Send>(
        &self,
        router: &Netns,
        f: impl FnOnce(&mut dyn DataPath) -> Result<T> + Send,
    ) -> Result<T> {
        router.run(|| {
            let mut path = self.path.lock().unwrap_or_else(PoisonError::into_inner);
            f(path.as_mut())
        })
    }

    /// The counters.
    pub fn counters(&self, router: &Netns) -> Result<Snapshot> {
        self.with(router, |path| Ok(path.counters()?))
    }
}

impl Drop for Installed {
    fn drop(&mut self) {
        if let Some((stop, agent)) = self.agent.take() {
            drop(stop);
            // A panic there has been printed; the namespace goes away with everything in it.
            agent.join().ok();
        }
    }
}

/// A table that publishes `count` ports of the lane, each to the backend's one port.
pub fn table(lane: &Lane, protocol: Protocol, count: u16, max_flows: u32) -> RuleTable {
    let rules = rival::ports(count).filter_map(|port| rule(lane, protocol, port, BACKEND_PORT));
    RuleTable::new(rules.collect(), settings(max_flows))
}

/// One port of the lane, published. `None` for port 0.
pub fn rule(lane: &Lane, protocol: Protocol, port: u16, backend_port: u16) -> Option<Rule> {
    let backend = Backend {
        address: IpAddr::V4(lane.backend()),
        port: Some(backend_port),
        weight: 1,
        state: BackendState::Ready,
    };
    Some(Rule {
        id: RuleId::new(format!("port-{port}")),
        from: Side::Tailnet,
        matches: Match {
            protocol: Some(protocol),
            dst: IpAddr::V4(lane.frontend()).into(),
            ports: PortRange::single(port)?,
            src: Vec::new(),
        },
        action: Action::Dnat {
            backends: Backends { list: vec![backend], affinity: Affinity::Flow },
            snat: Snat::Keep,
            proxy_protocol: false,
        },
        count_per_port: false,
    })
}

/// The lane's devices, and room for so many flows.
pub fn settings(max_flows: u32) -> Settings {
    Settings {
        interfaces: Interfaces { tailnet: vec!["tn0".into()], cluster: vec!["cl0".into()] },
        max_flows,
        ..Settings::default()
    }
}
