//! What reads foreign bytes, on foreign bytes: one function a reader. Each must come back from any input, and what it
//! says must hold. `cargo fuzz` calls them with inputs of its own; `tests/replay.rs` with those of `corpus` and mutants.

use std::{
    net::{Ipv4Addr, Ipv6Addr},
    sync::LazyLock,
};

use proxy::{explain::Question, parsers, status::Status};
use proxy_rules::{
    RuleTable, Side,
    model::{Device, Env, Model, Verdict},
    packet::{self, ETHERNET, checksum},
    validate,
};

mod localapi;
mod tailnet_api;

pub use localapi::localapi;
pub use tailnet_api::tailnet_api;

/// A reader of foreign bytes.
pub type Target = fn(&[u8]);

/// All of them, by the name of their corpus.
pub const TARGETS: [(&str, Target); 11] = [
    ("client_header", client_header),
    ("config", config),
    ("conntrack", conntrack),
    ("explain", explain),
    ("localapi", localapi),
    ("nft", nft),
    ("packet", packet),
    ("route", route),
    ("socks", socks),
    ("status", status),
    ("tailnet_api", tailnet_api),
];

/// The rules file with every field.
const RULES: &str = include_str!("../../deploy/examples/full.yaml");

#[expect(clippy::expect_used, reason = "a test of its own says that the example is valid")]
static TABLE: LazyLock<RuleTable> =
    LazyLock::new(|| validate::validate(RULES).expect("the example is valid").table);

/// A rules file, YAML or JSON.
pub fn config(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match validate::validate(text) {
        Ok(config) => {
            assert!(validate::parse(text).is_ok(), "valid, but not of the right shape");
            let rules = config.table.rules();
            assert!(rules.len() <= validate::MAX_RULES);
            let again = validate::validate(text).map(|config| config.table);
            assert_eq!(again.as_ref(), Ok(&config.table), "not the same twice");
        }
        Err(errors) => {
            assert!(errors.len() > 0, "refused without a reason");
            for error in errors.iter() {
                assert!(!error.problem.is_empty() && !error.remedy.is_empty(), "{error:?}");
            }
            let lines = errors.to_string().lines().count();
            assert_eq!(lines, errors.len(), "an error is a line: {errors}");
        }
    }
}

/// A datagram of ctnetlink: a dump, an answer.
pub fn conntrack(data: &[u8]) {
    let messages = parsers::conntrack(data);
    assert!(messages.is_none_or(|count| count <= data.len() / 16), "more messages than headers");
}

/// A datagram of rtnetlink: neighbours, routes.
pub fn route(data: &[u8]) {
    let messages = parsers::route(data);
    assert!(messages.is_none_or(|count| count <= data.len() / 16), "more messages than headers");
}

/// What `nft -j list` prints: of sets, a line break, of counters.
pub fn nft(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (sets, counters) = text.split_once('\n').unwrap_or((&text, "{\"nftables\": []}"));
    parsers::nft(sets, counters);
}

/// The status document, as the client reads it.
pub fn status(data: &[u8]) {
    let Ok(status) = serde_json::from_slice::<Status>(data) else { return };
    let text = serde_json::to_vec(&status).unwrap_or_default();
    let again = serde_json::from_slice::<Status>(&text).ok();
    assert_eq!(again, Some(status), "changed by being written and read");
}

/// A question to `/v1/explain`: protocol, source and destination, a line each; the first letter says the side.
pub fn explain(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let mut lines = text.lines();
    let mut line = || lines.next().unwrap_or_default().to_owned();
    let from = if text.starts_with('t') { Side::Tailnet } else { Side::Cluster };
    let question = Question { protocol: line(), src: line(), dst: line(), from };
    if let Ok(answer) = proxy::explain::explain(&TABLE, &question, None) {
        assert!(!answer.outcome.is_empty());
    }
}

/// What tailscaled says before a connection that it forwards: the PROXY protocol, both versions.
pub fn client_header(data: &[u8]) {
    in_steps(data, parsers::client_header);
}

/// What a SOCKS5 server answers, and the datagrams that it relays.
pub fn socks(data: &[u8]) {
    in_steps(data, parsers::socks_answer);
    let payload = parsers::socks_datagram(data);
    assert!(payload.is_none_or(|length| length + 10 <= data.len()), "a payload without a header");
}

/// Gives a reader what it asks for, as a stream does. It must come to an end within bounds, and say the same again.
fn in_steps(data: &[u8], read: impl Fn(&[u8]) -> Result<bool, usize>) {
    let mut given = 0;
    while let Some(bytes) = data.get(..given) {
        match read(bytes) {
            Err(more) => {
                assert!(more > 0 && given + more <= 1024, "asks for {more} bytes after {given}");
                given += more;
            }
            Ok(said) => return assert_eq!(read(bytes), Ok(said)),
        }
    }
}

fn world() -> Env {
    let device = |last| Device {
        address4: Some(Ipv4Addr::new(192, 0, 2, last)),
        address6: Some(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last.into())),
        mtu: 1280,
        l3: false,
    };
    Env { tailnet: Some(device(1)), cluster: Some(device(2)), ..Env::default() }
}

/// A frame: the parser, and the packet model under the rules of the example. The frame comes twice, from both sides: the
/// second time its flow is known.
pub fn packet(data: &[u8]) {
    for v6 in [None, Some(false), Some(true)] {
        if let Ok(headers) = packet::parse(data, v6) {
            assert!(headers.l4 <= headers.len && headers.len <= data.len(), "{headers:?}");
        }
    }
    let mut model = Model::new(TABLE.clone(), world());
    for side in [Side::Tailnet, Side::Tailnet, Side::Cluster, Side::Cluster] {
        match model.process(side, data).verdict {
            Verdict::Pass | Verdict::Drop(_) => {}
            Verdict::Answer { bytes, .. } => whole(bytes.get(ETHERNET..).unwrap_or_default()),
            Verdict::Forward { bytes, .. } => {
                assert_eq!(bytes.len(), data.len(), "carried, but not at its length");
                assert!(packet::parse(bytes.get(ETHERNET..).unwrap_or_default(), None).is_ok());
            }
        }
    }
}

/// A packet of our own making has right checksums.
fn whole(packet: &[u8]) {
    let headers = packet::parse(packet, None);
    assert!(headers.is_ok(), "an answer that cannot be read: {headers:?}");
    let Ok(headers) = headers else { return };
    assert_eq!(headers.len, packet.len(), "{headers:?}");
    assert!(checksum::is_right(packet, &headers), "wrong checksums: {headers:?}");
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_example_that_packets_meet_is_valid() {
        assert!(super::TABLE.rules().len() > 3);
    }
}
