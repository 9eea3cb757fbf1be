//! The frames of the workload: Ethernet, IPv4 without options, UDP, 18 bytes of payload.

use aya_ebpf::programs::XdpContext;

use crate::maps::Config;

const HEADER: usize = 42;
const IP: usize = 14;
const UDP: usize = 34;
/// UDP header and payload.
const UDP_LEN: usize = 26;
const FLOWS_PER_ADDRESS: u32 = 32;
const FIRST_SOURCE_PORT: u32 = 10_000;

/// A pointer to `LEN` bytes of the frame at `offset`.
#[inline(always)]
#[expect(clippy::inline_always, reason = "bounds must be visible where the packet is used")]
fn bytes<const LEN: usize>(ctx: &XdpContext, offset: usize) -> Option<*mut [u8; LEN]> {
    let start = ctx.data() + offset;
    (start + LEN <= ctx.data_end()).then_some(start as *mut [u8; LEN])
}

const fn fold(sum: u32) -> u16 {
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

/// One's complement sum of 16-bit words.
#[inline(always)]
#[expect(clippy::inline_always, reason = "loops over a packet must be unrolled for the verifier")]
fn sum<const LEN: usize>(data: &[u8; LEN]) -> u32 {
    let (words, _) = data.as_chunks::<2>();
    let mut total = 0;
    for word in words {
        total += u32::from(u16::from_be_bytes(*word));
    }
    total
}

/// Writes the frame of one flow.
pub(crate) fn write(ctx: &XdpContext, config: &Config, flow: u32) -> Option<()> {
    let frame = bytes::<HEADER>(ctx, 0)?;
    let host = flow / FLOWS_PER_ADDRESS + 1;
    let src_port = (FIRST_SOURCE_PORT + flow % FLOWS_PER_ADDRESS) as u16;
    let [p, q] = [config.header[UDP + 2], config.header[UDP + 3]];
    let dst_port = (u32::from(u16::from_be_bytes([p, q])) + flow.checked_rem(config.ports)?) as u16;
    let base = u32::from_be_bytes([
        config.header[IP + 12],
        config.header[IP + 13],
        config.header[IP + 14],
        config.header[IP + 15],
    ]);
    let source = base + host;
    let varies = (source >> 16) + (source & 0xffff);
    let ip_sum = !fold(config.ip_sum + varies);
    let udp_sum = !fold(config.udp_sum + varies + u32::from(src_port) + u32::from(dst_port));
    let udp_sum = if udp_sum == 0 { 0xffff } else { udp_sum };
    // SAFETY: `bytes` has checked the bounds.
    let frame = unsafe { &mut *frame };
    *frame = config.header;
    frame[IP + 10..IP + 12].copy_from_slice(&ip_sum.to_be_bytes());
    frame[IP + 12..IP + 16].copy_from_slice(&source.to_be_bytes());
    frame[UDP..UDP + 2].copy_from_slice(&src_port.to_be_bytes());
    frame[UDP + 2..UDP + 4].copy_from_slice(&dst_port.to_be_bytes());
    frame[UDP + 6..UDP + 8].copy_from_slice(&udp_sum.to_be_bytes());
    Some(())
}

/// Gives the frame the configured Ethernet addresses.
pub(crate) fn write_macs(ctx: &XdpContext, config: &Config) -> Option<()> {
    let frame = bytes::<12>(ctx, 0)?;
    // SAFETY: `bytes` has checked the bounds.
    unsafe { (*frame).copy_from_slice(&config.header[..12]) };
    Some(())
}

/// Whether the frame is what the configured header says (Ethernet addresses, TTL, destination address; the port if it
/// is one) and its two checksums are right.
pub(crate) fn is_right(ctx: &XdpContext, config: &Config) -> bool {
    let (Some(head), Some(ip), Some(udp)) =
        (bytes::<HEADER>(ctx, 0), bytes::<20>(ctx, IP), bytes::<UDP_LEN>(ctx, UDP))
    else {
        return false;
    };
    // SAFETY: `bytes` has checked the bounds; nobody else writes to the frame now.
    let (head, ip, udp) = unsafe { (&*head, &*ip, &*udp) };
    let addresses = u32::from(u16::from_be_bytes([ip[12], ip[13]]))
        + u32::from(u16::from_be_bytes([ip[14], ip[15]]))
        + u32::from(u16::from_be_bytes([ip[16], ip[17]]))
        + u32::from(u16::from_be_bytes([ip[18], ip[19]]));
    let pseudo = addresses + 17 + UDP_LEN as u32;
    fold(sum(ip)) == 0xffff
        && fold(sum(udp) + pseudo) == 0xffff
        && udp[6..8] != [0, 0]
        && head[..12] == config.header[..12]
        && ip[8] == config.header[IP + 8]
        && ip[16..] == config.header[IP + 16..IP + 20]
        && (config.ports != 1 || udp[2..4] == config.header[UDP + 2..UDP + 4])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_with_its_complement_folds_to_all_ones() {
        let words = [0x12, 0x34, 0xff, 0xff, 0x00, 0x01];
        let complement = !fold(sum(&words));
        assert_eq!(fold(sum(&words) + u32::from(complement)), 0xffff);
    }
}
