//! Two replicas: one reconciles, never both.

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::bed::{Bed, Replica, in_cluster, wait_until};

/// A Lease that is not renewed is free after 15 seconds; the rest is for a busy machine.
const TAKEN_OVER: Duration = Duration::from_secs(20);

/// Two replicas; the first one reconciles.
async fn two(bed: &Bed<'_>) -> (Replica, Replica) {
    let first = bed.start("first", 9002);
    wait_until("the first leads", async || first.leads().await).await;
    let second = bed.start("second", 9003);
    second.wait_ready().await;
    first.wait_ready().await;
    (first, second)
}

async fn wait_good(bed: &Bed<'_>, class: &str) {
    bed.make_class(class).await;
    wait_until(class, async || bed.is_good(class).await).await;
}

#[test]
fn another_replica_takes_over_from_one_that_was_killed_and_at_once_from_one_that_ends() {
    kernel_or_skip!();
    in_cluster(async |bed| {
        let (mut first, mut second) = two(bed).await;
        wait_good(bed, "a").await;
        assert!(first.reconciled().await > 0, "{}", first.log());
        assert_eq!((second.reconciled().await, second.leads().await), (0, false));

        first.signal(Signal::SIGKILL);
        assert!(!first.wait_end().await);
        let took = wait_until("the second leads", async || second.leads().await).await;
        assert!(took < TAKEN_OVER, "{took:?}");
        wait_good(bed, "b").await;

        let third = bed.start("third", 9004);
        third.wait_ready().await;
        assert!(!third.leads().await);
        second.signal(Signal::SIGTERM);
        assert!(second.wait_end().await, "{}", second.log());
        let took = wait_until("the third leads", async || third.leads().await).await;
        assert!(took < Duration::from_secs(5), "{took:?}");
        let (holder, transitions) = bed.holder().await;
        assert!(holder.as_ref().is_some_and(|holder| holder.starts_with("third_")), "{holder:?}");
        assert_eq!(transitions, Some(3));
        wait_good(bed, "c").await;
    });
}

#[test]
fn one_that_slept_while_another_took_over_does_nothing_when_it_wakes() {
    kernel_or_skip!();
    in_cluster(async |bed| {
        let (first, second) = two(bed).await;
        wait_good(bed, "a").await;
        let before = first.reconciled().await;
        first.signal(Signal::SIGSTOP);
        wait_until("the second leads", async || second.leads().await).await;
        // The first is told of it by its watch as soon as it wakes.
        wait_good(bed, "b").await;
        first.signal(Signal::SIGCONT);
        wait_until("the first knows", async || first.log().contains("leads no more")).await;
        assert!(!first.leads().await);
        assert!(second.leads().await);
        wait_good(bed, "c").await;
        assert_eq!(first.reconciled().await, before, "{}", first.log());
        first.wait_ready().await;
    });
}

#[test]
fn without_an_api_server_nobody_leads_and_with_it_one_does_again() {
    kernel_or_skip!();
    in_cluster(async |bed| {
        let (first, second) = two(bed).await;
        bed.server.pause().unwrap();
        let took = wait_until("the first gives up", async || !first.leads().await).await;
        // Before anybody else may take over.
        assert!(took < Duration::from_secs(15), "{took:?}");
        assert!(!second.leads().await);
        bed.server.resume().unwrap();
        wait_until("one leads", async || first.leads().await != second.leads().await).await;
        wait_good(bed, "a").await;
    });
}
