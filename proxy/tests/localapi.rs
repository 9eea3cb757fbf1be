//! The client of tailscaled against the real one, alone and in a tailnet. Needs root; with SKIP_KERNEL_TESTS=1 it says so
//! and does nothing.
#![cfg(test)]

#[path = "localapi/alone.rs"]
mod alone;
#[path = "localapi/peers.rs"]
mod peers;
#[path = "localapi/served.rs"]
mod served;

use std::time::Duration;

use proxy::localapi::{Bus, LocalApi, Notify, Watch};
use proxy_testbed::{
    Tailnet,
    tailnet::{KeyOptions, Node, NodeOptions},
};

/// No change that a test brings about takes longer to be told; a log-in on a busy machine is the longest.
const PATIENCE: Duration = Duration::from_secs(20);

/// Everything, as the proxy will ask for it.
fn everything() -> Watch {
    Watch::INITIAL_STATE
        | Watch::INITIAL_PREFS
        | Watch::INITIAL_HEALTH
        | Watch::INITIAL_STATUS
        | Watch::PEER_CHANGES
        | Watch::NO_NETMAP
}

/// A node without a TUN device that has not logged in, and its client.
fn node(tailnet: &Tailnet, name: &str) -> (Node, LocalApi) {
    let options = NodeOptions { userspace: true, ..NodeOptions::default() };
    let node = tailnet.node_with(name, &options).unwrap();
    // Its socket is there a moment before it knows what it is.
    node.wait_status("it waits for a log-in", |status| status["BackendState"] == "NeedsLogin")
        .unwrap();
    let api = LocalApi::new(node.socket());
    (node, api)
}

/// A key for nodes with a tag.
fn tagged() -> KeyOptions {
    KeyOptions { tags: vec!["tag:k8s".to_owned()], reusable: true, ..KeyOptions::default() }
}

/// The first message from here on that is the one.
async fn until(bus: &mut Bus, what: &str, is: impl Fn(&Notify) -> bool) -> Notify {
    let wait = async {
        while let Some(notify) = bus.next().await.unwrap() {
            if is(&notify) {
                return notify;
            }
        }
        panic!("the bus ended before {what}");
    };
    let seen = tokio::time::timeout(PATIENCE, wait).await;
    seen.unwrap_or_else(|_| panic!("{what}: not seen within {PATIENCE:?}"))
}

/// Whether this machine's tests are told to do without the kernel.
fn skipped() -> bool {
    let skip = std::env::var_os("SKIP_KERNEL_TESTS").is_some_and(|value| value == "1");
    if skip {
        eprintln!("skipped: SKIP_KERNEL_TESTS=1");
    }
    skip
}
