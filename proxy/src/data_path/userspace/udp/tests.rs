//! Idle sessions end, on a clock that jumps while no datagram is under way.

use std::time::Duration;

use proxy_rules::{Affinity, Protocol, RuleId, Series, Side};
use tokio::{
    runtime::Handle,
    time::{Instant, pause, resume, sleep},
};

use super::*;
use crate::data_path::userspace::{
    frontend::{Carry, Frontend, Route, RouteAction, Target},
    plan::{Listen, Transport},
    tasks::Tasks,
};

fn live(frontend: SocketAddr, backend: SocketAddr, shared: &Shared) -> Live {
    let carry = Carry {
        targets: vec![Target { address: backend, ready: true }],
        lookup: vec![0],
        affinity: Affinity::Flow,
        source: None,
        proxy_protocol: false,
        socks5: None,
    };
    let (rule, protocol) = (RuleId::new("dns"), Protocol::Udp);
    let route = Route {
        series: Series {
            rule,
            from: Side::Tailnet,
            protocol: Some(protocol),
            port: Some(frontend.port()),
            last_port: None,
        },
        sources: Vec::new(),
        action: RouteAction::Carry(Arc::new(carry)),
    };
    let listen = Listen { transport: Transport::Udp, address: frontend };
    let frontend = Frontend { routes: vec![route], protected: Arc::new([]) };
    Live::new(listen, frontend, &shared.counters)
}

/// How long the session lives after its last datagram.
async fn lives_on(shared: &Shared) -> u64 {
    assert_eq!(shared.capacity.live(), 1);
    pause();
    let last = Instant::now();
    while shared.capacity.live() > 0 {
        sleep(Duration::from_millis(100)).await;
    }
    resume();
    last.elapsed().as_secs_f64().round() as u64
}

#[tokio::test]
async fn an_idle_session_ends_sooner_if_nobody_has_answered() {
    let [front, backend, client] =
        [(); 3].map(|()| std::net::UdpSocket::bind("127.0.0.1:0").unwrap()).map(|socket| {
            socket.set_nonblocking(true).unwrap();
            UdpSocket::from_std(socket).unwrap()
        });
    let address = front.local_addr().unwrap();
    let shared = Arc::new(Shared::default());
    shared.capacity.set_max(8, 8);
    let (_rules, live) =
        watch::channel(Arc::new(live(address, backend.local_addr().unwrap(), &shared)));
    let tasks = Tasks::new(Handle::current());
    let service = Arc::new(Service::new(front, live, Arc::clone(&shared), tasks.spawner().clone()));
    tasks.spawner().spawn(|stop| Arc::clone(&service).receive(stop));

    client.send_to(b"question", address).await.unwrap();
    let mut buffer = [0; 16];
    backend.recv_from(&mut buffer).await.unwrap();
    assert_eq!(lives_on(&shared).await, 30);

    client.send_to(b"question", address).await.unwrap();
    let (_, session) = backend.recv_from(&mut buffer).await.unwrap();
    backend.send_to(b"answer", session).await.unwrap();
    assert_eq!(client.recv_from(&mut buffer).await.unwrap(), (6, address));
    assert_eq!(lives_on(&shared).await, 120);
    assert!(service.sessions().is_empty());
}
