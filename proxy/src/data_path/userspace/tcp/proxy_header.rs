//! The PROXY protocol, version 2, sender side: <https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt>, section 2.2.

use std::net::{IpAddr, SocketAddr};

const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
/// Version 2, command PROXY.
const PROXY: u8 = 0x21;
const TCP_OVER_IPV4: u8 = 0x11;
const TCP_OVER_IPV6: u8 = 0x21;

/// The header for a TCP connection from `client` to `frontend`. Addresses of different families do not occur on one
/// socket; if they did, both would be written as IPv6.
pub(in crate::data_path::userspace) fn encode(client: SocketAddr, frontend: SocketAddr) -> Vec<u8> {
    let (family, addresses) = match (client.ip(), frontend.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            (TCP_OVER_IPV4, [from.octets(), to.octets()].concat())
        }
        (from, to) => (TCP_OVER_IPV6, [ipv6(from), ipv6(to)].concat()),
    };
    let ports = [client.port().to_be_bytes(), frontend.port().to_be_bytes()].concat();
    let length = (addresses.len() + ports.len()) as u16;
    [&SIGNATURE[..], &[PROXY, family], &length.to_be_bytes(), &addresses, &ports].concat()
}

fn ipv6(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

#[cfg(test)]
mod tests {
    use super::encode;

    #[test]
    fn ipv4_header_is_28_bytes() {
        let header =
            encode("192.0.2.1:51000".parse().unwrap(), "198.51.100.2:443".parse().unwrap());
        let expected = b"\x0d\x0a\x0d\x0a\x00\x0d\x0a\x51\x55\x49\x54\x0a\x21\x11\x00\x0c\
            \xc0\x00\x02\x01\xc6\x33\x64\x02\xc7\x38\x01\xbb";
        assert_eq!(header, expected);
    }

    #[test]
    fn ipv6_header_is_52_bytes() {
        let header =
            encode("[2001:db8::1]:51000".parse().unwrap(), "[2001:db8::2]:443".parse().unwrap());
        let expected = b"\x0d\x0a\x0d\x0a\x00\x0d\x0a\x51\x55\x49\x54\x0a\x21\x21\x00\x24\
            \x20\x01\x0d\xb8\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\
            \x20\x01\x0d\xb8\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\xc7\x38\x01\xbb";
        assert_eq!(header, expected);
    }
}
