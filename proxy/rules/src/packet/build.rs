//! A fluent builder of packets.

use std::net::{IpAddr, SocketAddr};

use super::{Fragment, Headers, ICMPV6, Kind, checksum, flag, octets};

#[derive(Clone, Debug)]
enum Transport {
    Tcp { flags: u8, seq: u32, ack: u32, options: Vec<u8> },
    Udp { no_checksum: bool },
    Icmp { kind: u8, code: u8, rest: [u8; 4] },
    Other(u8),
}

/// A packet to be built.
#[derive(Clone, Debug)]
pub struct Build {
    src: SocketAddr,
    dst: SocketAddr,
    transport: Transport,
    payload: Vec<u8>,
    ttl: u8,
    id: u16,
    df: bool,
    /// Offset in bytes, and whether more follow.
    fragment: Option<(u16, bool)>,
    ip_options: Vec<u8>,
    extensions: Vec<(u8, Vec<u8>)>,
}

impl Build {
    fn new(src: SocketAddr, dst: SocketAddr, transport: Transport) -> Self {
        Self {
            src,
            dst,
            transport,
            payload: Vec::new(),
            ttl: 64,
            id: 0x1234,
            df: false,
            fragment: None,
            ip_options: Vec::new(),
            extensions: Vec::new(),
        }
    }

    /// A TCP segment.
    pub fn tcp(src: SocketAddr, dst: SocketAddr, flags: u8) -> Self {
        Self::new(src, dst, Transport::Tcp { flags, seq: 1000, ack: 0, options: Vec::new() })
    }

    /// A SYN.
    pub fn syn(src: SocketAddr, dst: SocketAddr) -> Self {
        Self::tcp(src, dst, flag::SYN)
    }

    /// A UDP datagram.
    pub fn udp(src: SocketAddr, dst: SocketAddr) -> Self {
        Self::new(src, dst, Transport::Udp { no_checksum: false })
    }

    /// An ICMP or ICMPv6 echo.
    pub fn echo(src: IpAddr, dst: IpAddr, id: u16, is_reply: bool) -> Self {
        let kind = match (src.is_ipv6(), is_reply) {
            (false, false) => 8,
            (false, true) => 0,
            (true, false) => 128,
            (true, true) => 129,
        };
        let [a, b] = id.to_be_bytes();
        Self::icmp(src, dst, kind, 0, [a, b, 0, 1])
    }

    /// Any ICMP or ICMPv6 message; errors quote their payload.
    pub fn icmp(src: IpAddr, dst: IpAddr, kind: u8, code: u8, rest: [u8; 4]) -> Self {
        let (src, dst) = (SocketAddr::new(src, 0), SocketAddr::new(dst, 0));
        Self::new(src, dst, Transport::Icmp { kind, code, rest })
    }

    /// Another protocol.
    pub fn other(src: IpAddr, dst: IpAddr, protocol: u8) -> Self {
        Self::new(SocketAddr::new(src, 0), SocketAddr::new(dst, 0), Transport::Other(protocol))
    }

    /// Payload.
    pub fn payload(mut self, payload: impl Into<Vec<u8>>) -> Self {
        self.payload = payload.into();
        self
    }

    /// Time to live.
    pub fn ttl(mut self, ttl: u8) -> Self {
        self.ttl = ttl;
        self
    }

    /// "Do not fragment".
    pub fn df(mut self) -> Self {
        self.df = true;
        self
    }

    /// Sequence and acknowledgement number.
    pub fn numbers(mut self, new_seq: u32, new_ack: u32) -> Self {
        if let Transport::Tcp { seq, ack, .. } = &mut self.transport {
            (*seq, *ack) = (new_seq, new_ack);
        }
        self
    }

    /// The option "maximum segment size".
    pub fn mss(self, mss: u16) -> Self {
        let [high, low] = mss.to_be_bytes();
        self.tcp_options([2, 4, high, low])
    }

    /// TCP options, padded to words; at most 40 bytes.
    pub fn tcp_options(mut self, new: impl Into<Vec<u8>>) -> Self {
        if let Transport::Tcp { options, .. } = &mut self.transport {
            *options = padded(new.into());
        }
        self
    }

    /// UDP over IPv4 without checksum.
    pub fn no_checksum(mut self) -> Self {
        if let Transport::Udp { no_checksum } = &mut self.transport {
            *no_checksum = true;
        }
        self
    }

    /// IPv4 options, padded to words; at most 40 bytes.
    pub fn ip_options(mut self, options: impl Into<Vec<u8>>) -> Self {
        self.ip_options = padded(options.into());
        self
    }

    /// An IPv6 extension header (0, 43, 60) with this many times 8 bytes after its first 8.
    pub fn extension(mut self, number: u8, more: u8) -> Self {
        let mut header = vec![0, more, 1, 4, 0, 0, 0, 0];
        header.resize(8 + usize::from(more) * 8, 0);
        self.extensions.push((number, header));
        self
    }

    /// A fragment of a datagram: identification, offset in bytes (a multiple of 8), more fragments. A later one consists
    /// of the payload alone.
    pub fn fragment(mut self, id: u16, offset: u16, more: bool) -> Self {
        self.id = id;
        self.fragment = Some((offset, more));
        self
    }

    /// The IP packet.
    pub fn bytes(self) -> Vec<u8> {
        let is_later = self.fragment.is_some_and(|(offset, _)| offset > 0);
        let segment = if is_later { self.payload.clone() } else { self.segment() };
        let protocol = self.protocol();
        let (mut packet, l4) = match self.src.ip() {
            IpAddr::V4(_) => self.ipv4(protocol, segment.len()),
            IpAddr::V6(_) => self.ipv6(protocol, segment.len()),
        };
        packet.extend(segment);
        if !is_later {
            let kind = match self.transport {
                Transport::Tcp { flags, .. } => Kind::Tcp(flags),
                Transport::Udp { .. } => Kind::Udp,
                Transport::Icmp { .. } => Kind::Error,
                Transport::Other(_) => Kind::Other,
            };
            let headers = Headers {
                src: self.src.ip(),
                dst: self.dst.ip(),
                src_port: self.src.port(),
                dst_port: self.dst.port(),
                protocol,
                kind,
                echo_reply: false,
                fragment: Fragment::Whole,
                ttl: self.ttl,
                df: self.df,
                len: packet.len(),
                l4,
            };
            checksum::fill_transport(&mut packet, &headers);
        }
        packet
    }

    /// The IP packet in an Ethernet frame.
    pub fn frame(self, dmac: [u8; 6], smac: [u8; 6]) -> Vec<u8> {
        let ethertype: u16 = if self.src.is_ipv6() { 0x86dd } else { 0x0800 };
        let mut frame = [dmac, smac].concat();
        frame.extend(ethertype.to_be_bytes());
        frame.extend(self.bytes());
        frame
    }

    fn protocol(&self) -> u8 {
        match self.transport {
            Transport::Tcp { .. } => 6,
            Transport::Udp { .. } => 17,
            Transport::Icmp { .. } if self.src.is_ipv6() => ICMPV6,
            Transport::Icmp { .. } => 1,
            Transport::Other(protocol) => protocol,
        }
    }

    fn segment(&self) -> Vec<u8> {
        let mut segment = Vec::new();
        let ports = |segment: &mut Vec<u8>| {
            segment.extend(self.src.port().to_be_bytes());
            segment.extend(self.dst.port().to_be_bytes());
        };
        match &self.transport {
            Transport::Tcp { flags, seq, ack, options } => {
                ports(&mut segment);
                segment.extend(seq.to_be_bytes());
                segment.extend(ack.to_be_bytes());
                let words = (5 + options.len() / 4) as u8;
                segment.extend([words << 4, *flags, 0xff, 0xff, 0, 0, 0, 0]);
                segment.extend(options);
            }
            Transport::Udp { no_checksum } => {
                ports(&mut segment);
                segment.extend(((8 + self.payload.len()) as u16).to_be_bytes());
                // Anything but 0 asks for the checksum.
                segment.extend([0, u8::from(!no_checksum)]);
            }
            Transport::Icmp { kind, code, rest } => {
                segment.extend([*kind, *code, 0, 0]);
                segment.extend(rest);
            }
            Transport::Other(_) => {}
        }
        segment.extend(&self.payload);
        segment
    }

    fn ipv4(&self, protocol: u8, payload: usize) -> (Vec<u8>, usize) {
        let header = 20 + self.ip_options.len();
        let (offset, more) = self.fragment.unwrap_or((0, false));
        let place = (offset / 8) | (u16::from(more) << 13) | (u16::from(self.df) << 14);
        let mut packet = vec![0x40 | (header / 4) as u8, 0];
        packet.extend(((header + payload) as u16).to_be_bytes());
        packet.extend(self.id.to_be_bytes());
        packet.extend(place.to_be_bytes());
        packet.extend([self.ttl, protocol, 0, 0]);
        packet.extend(octets(self.src.ip()));
        packet.extend(octets(self.dst.ip()));
        packet.extend(&self.ip_options);
        checksum::fill_ipv4(&mut packet, header);
        (packet, header)
    }

    fn ipv6(&self, protocol: u8, payload: usize) -> (Vec<u8>, usize) {
        let mut extensions = self.extensions.clone();
        if let Some((offset, more)) = self.fragment {
            let [high, low] = ((offset & 0xfff8) | u16::from(more)).to_be_bytes();
            let [c, d] = self.id.to_be_bytes();
            extensions.push((44, vec![0, 0, high, low, 0, 0, c, d]));
        }
        let numbers: Vec<u8> = extensions.iter().map(|(number, _)| *number).collect();
        let mut following = numbers.iter().skip(1).copied().chain([protocol]);
        let mut chain = Vec::new();
        for (_, header) in &extensions {
            chain.extend(following.next());
            chain.extend(header.iter().skip(1));
        }
        let mut packet = vec![0x60, 0, 0, 0];
        packet.extend(((chain.len() + payload) as u16).to_be_bytes());
        packet.extend([numbers.first().copied().unwrap_or(protocol), self.ttl]);
        packet.extend(octets(self.src.ip()));
        packet.extend(octets(self.dst.ip()));
        packet.extend(&chain);
        let l4 = packet.len();
        (packet, l4)
    }
}

fn padded(mut options: Vec<u8>) -> Vec<u8> {
    options.truncate(40);
    options.resize(options.len().div_ceil(4) * 4, 0);
    options
}
