//! Fragments: the first shows the ports, the others follow it.

use proxy_rules::{
    DropReason, Fragments, Settings, Side, Snat,
    packet::{Build, word},
};

use crate::support::*;

fn later(f: Family, id: u16) -> Build {
    Build::udp(f.client(4000), f.frontend(80)).payload("the second part").fragment(id, 24, false)
}

fn first(f: Family, id: u16) -> Build {
    Build::udp(f.client(4000), f.frontend(80)).payload("the first part.!").fragment(id, 0, true)
}

#[test]
fn a_later_fragment_follows_the_first_with_its_payload_untouched() {
    kernel_or_skip!();
    for f in FAMILIES {
        let mut shadow = world(service(Snat::Masquerade));
        carries(
            &mut shadow,
            Side::Tailnet,
            first(f, 7),
            Build::udp(f.masquerade(4000), f.backend(8080))
                .payload("the first part.!")
                .fragment(7, 0, true)
                .ttl(63),
        );
        carries(
            &mut shadow,
            Side::Tailnet,
            later(f, 7),
            Build::udp(f.masquerade(4000), f.backend(8080))
                .payload("the second part")
                .fragment(7, 24, false)
                .ttl(63),
        );
        assert_eq!(count(&shadow, "web").original_packets, 2);
    }
}

#[test]
fn a_later_fragment_of_another_datagram_is_an_orphan() {
    kernel_or_skip!();
    for f in FAMILIES {
        let mut shadow = world(service(Snat::Masquerade));
        dropped(&mut shadow, Side::Tailnet, later(f, 7).bytes(), DropReason::FragmentWithoutFirst);
        carried(&mut shadow, Side::Tailnet, first(f, 8).bytes());
        dropped(&mut shadow, Side::Tailnet, later(f, 7).bytes(), DropReason::FragmentWithoutFirst);
        // From the other side nobody claims it.
        passed(&mut shadow, Side::Cluster, later(f, 8).bytes());
    }
}

#[test]
fn a_first_fragment_that_is_not_carried_is_not_remembered() {
    kernel_or_skip!();
    for f in FAMILIES {
        let mut shadow = world(service(Snat::Masquerade));
        answered(&mut shadow, Side::Tailnet, &first(f, 7).ttl(1).bytes(), DropReason::TtlExpired);
        dropped(&mut shadow, Side::Tailnet, later(f, 7).bytes(), DropReason::FragmentWithoutFirst);
    }
}

#[test]
fn where_fragments_are_disabled_each_is_dropped_if_a_rule_names_its_destination() {
    kernel_or_skip!();
    let settings = Settings { fragments: Fragments::Drop, ..Settings::default() };
    for f in FAMILIES {
        let mut shadow = world_with(service(Snat::Masquerade), settings.clone());
        for packet in [first(f, 7), later(f, 7)] {
            dropped(&mut shadow, Side::Tailnet, packet.bytes(), DropReason::FragmentsDisabled);
        }
        passed(&mut shadow, Side::Cluster, later(f, 7).bytes());
    }
}

#[test]
fn a_fragment_header_around_a_whole_packet_makes_no_fragment_of_it() {
    kernel_or_skip!();
    let settings = Settings { fragments: Fragments::Drop, ..Settings::default() };
    let mut shadow = world_with(service(Snat::Masquerade), settings);
    let atomic = |build: Build| build.fragment(7, 0, false).payload("x");
    let sent = atomic(Build::udp(V6.client(4000), V6.frontend(80)));
    assert_eq!(word(&sent.clone().bytes(), 42), Some(0));
    carries(
        &mut shadow,
        Side::Tailnet,
        sent,
        atomic(Build::udp(V6.masquerade(4000), V6.backend(8080))).ttl(63),
    );
}
