//! Local sockets: what belongs to one is never rewritten.

use aya_ebpf::{
    bindings::{__sk_buff, BPF_TCP_LISTEN, bpf_sock_tuple},
    helpers::generated::{bpf_sk_lookup_tcp, bpf_sk_lookup_udp, bpf_sk_release},
};
use proxy_ebpf_common::{Address, FlowKey, protocol};

use crate::{maps::LOCAL, parse::words};

/// How a local socket relates to a packet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    /// No socket would take it.
    None,
    /// A socket is connected to exactly this peer.
    Connected,
    /// A socket listens on the port (TCP) or is bound to it (UDP).
    Bound,
}

const CURRENT_NETNS: u64 = u64::MAX;
const STATE_ESTABLISHED: u32 = 1;

/// Whether the address is one of this host's own.
#[inline(always)]
pub(crate) fn is_local(address: &Address) -> bool {
    // SAFETY: the map is not preallocated; the value is not used.
    unsafe { LOCAL.get(address) }.is_some()
}

/// The local socket that a packet with this tuple would be given to.
#[inline(always)]
pub(crate) fn owner(skb: *mut __sk_buff, key: &FlowKey, v6: bool) -> Owner {
    match look_up(skb, key, v6) {
        0 => Owner::None,
        1 => Owner::Connected,
        _ => Owner::Bound,
    }
}

/// A subprogram for the sake of the stack: [`Owner`] as a number.
#[inline(never)]
fn look_up(skb: *mut __sk_buff, key: &FlowKey, v6: bool) -> u32 {
    if key.protocol != protocol::TCP && key.protocol != protocol::UDP {
        return 0;
    }
    let (src, dst) = (words(&key.src), words(&key.dst));
    let (sport, dport) = (u16::from_ne_bytes(key.src_port), u16::from_ne_bytes(key.dst_port));
    let ports = u32::from(sport) | u32::from(dport) << 16;
    // struct bpf_sock_tuple: addresses of the family's size, then the ports, all as on the wire.
    let mut tuple = [0u32; 9];
    let size = if v6 {
        tuple = [src[0], src[1], src[2], src[3], dst[0], dst[1], dst[2], dst[3], ports];
        36
    } else {
        tuple[0] = src[3];
        tuple[1] = dst[3];
        tuple[2] = ports;
        12
    };
    let tuple = (&raw mut tuple).cast::<bpf_sock_tuple>();
    // SAFETY: the tuple outlives the calls and is as large as stated; the socket is released before the end.
    unsafe {
        let tcp = key.protocol == protocol::TCP;
        let socket = if tcp {
            bpf_sk_lookup_tcp(skb.cast(), tuple, size, CURRENT_NETNS, 0)
        } else {
            bpf_sk_lookup_udp(skb.cast(), tuple, size, CURRENT_NETNS, 0)
        };
        if socket.is_null() {
            return 0;
        }
        let state = (*socket).state;
        bpf_sk_release(socket.cast());
        match (tcp, state) {
            (true, BPF_TCP_LISTEN) => 2,
            (true, _) | (false, STATE_ESTABLISHED) => 1,
            _ => 2,
        }
    }
}
