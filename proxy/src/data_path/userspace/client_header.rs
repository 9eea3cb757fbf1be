//! The PROXY protocol, versions 1 and 2, receiver side: <https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt>.
//! tailscaled says with it whose connection it forwards.

use std::net::{IpAddr, SocketAddr};

use super::step::{Step, take};

const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
const TEXT: &[u8] = b"PROXY ";
/// The longest line of version 1, its end included.
const LONGEST_LINE: usize = 107;
/// The longest rest of a header of version 2: two addresses of IPv6 with ports, and some extensions.
const LONGEST: usize = 512;
/// Versions and commands, in one byte.
const PROXY: u8 = 0x21;
const LOCAL: u8 = 0x20;
const TCP_OVER_IPV4: u8 = 0x11;
const TCP_OVER_IPV6: u8 = 0x21;

/// Reads a header: the client's address.
pub(crate) fn client(bytes: &[u8]) -> Step<SocketAddr> {
    let start = bytes.get(..SIGNATURE.len().min(bytes.len())).unwrap_or_default();
    if SIGNATURE.starts_with(start) {
        return binary(bytes);
    }
    let start = bytes.get(..TEXT.len().min(bytes.len())).unwrap_or_default();
    if TEXT.starts_with(start) {
        text(bytes)
    } else {
        Step::Bad("not a header of the PROXY protocol")
    }
}

fn binary(bytes: &[u8]) -> Step<SocketAddr> {
    let mut rest = bytes;
    let parsed = (|| {
        take(&mut rest, SIGNATURE.len())?;
        let &[command, family, high, low] = take(&mut rest, 4)? else {
            return Err(Step::Bad("not a header of the PROXY protocol"));
        };
        let length = usize::from(u16::from_be_bytes([high, low]));
        match command {
            PROXY => {}
            LOCAL => return Err(Step::Bad("a header of the PROXY protocol without a client")),
            _ => return Err(Step::Bad("an unknown version of the PROXY protocol")),
        }
        if length > LONGEST {
            return Err(Step::Bad("a header of the PROXY protocol that is too long"));
        }
        let addresses = take(&mut rest, length)?;
        let client = match family {
            TCP_OVER_IPV4 => v2::<4>(addresses),
            TCP_OVER_IPV6 => v2::<16>(addresses),
            _ => return Err(Step::Bad("a header of the PROXY protocol that is not about TCP")),
        };
        client.ok_or(Step::Bad("a header of the PROXY protocol that is too short"))
    })();
    parsed.map_or_else(|step| step, Step::Done)
}

/// The source, of addresses of so many bytes.
fn v2<const N: usize>(addresses: &[u8]) -> Option<SocketAddr>
where
    IpAddr: From<[u8; N]>,
{
    let (source, rest) = addresses.split_first_chunk::<N>()?;
    let (_, ports) = rest.split_first_chunk::<N>()?;
    let (port, _) = ports.get(..4)?.split_first_chunk::<2>()?;
    Some(SocketAddr::new(IpAddr::from(*source), u16::from_be_bytes(*port)))
}

fn text(bytes: &[u8]) -> Step<SocketAddr> {
    let Some(line) = bytes.strip_suffix(b"\r\n") else {
        // Byte by byte: the line's end must be the last that is taken.
        return match bytes.len() {
            0..15 => Step::More(15 - bytes.len()),
            15..LONGEST_LINE => Step::More(1),
            _ => Step::Bad("a line of the PROXY protocol that is too long"),
        };
    };
    let mut words = line.split(|byte| *byte == b' ').map(|word| std::str::from_utf8(word).ok());
    let mut word = || words.next().flatten();
    let (Some("PROXY"), Some(family)) = (word(), word()) else {
        return Step::Bad("not a header of the PROXY protocol");
    };
    let v4 = match family {
        "TCP4" => true,
        "TCP6" => false,
        _ => return Step::Bad("a line of the PROXY protocol without a client"),
    };
    let mut ip = || word()?.parse::<IpAddr>().ok().filter(|ip| ip.is_ipv4() == v4);
    let (Some(source), Some(_)) = (ip(), ip()) else {
        return Step::Bad("a line of the PROXY protocol without addresses");
    };
    let mut port = || word()?.parse::<u16>().ok();
    match (port(), port(), words.next()) {
        (Some(port), Some(_), None) => Step::Done(SocketAddr::new(source, port)),
        _ => Step::Bad("a line of the PROXY protocol without ports"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data_path::userspace::tcp::proxy_header::encode;

    #[test]
    fn what_we_write_we_read_and_not_a_byte_more() {
        for (client_at, frontend) in
            [("192.0.2.1:51000", "198.51.100.2:443"), ("[2001:db8::1]:51000", "[2001:db8::2]:443")]
        {
            let header = encode(client_at.parse().unwrap(), frontend.parse().unwrap());
            for length in 0..header.len() {
                let step = client(&header[..length]);
                assert!(
                    matches!(step, Step::More(more) if length + more <= header.len()),
                    "{step:?}"
                );
            }
            assert_eq!(client(&header), Step::Done(client_at.parse().unwrap()));
        }
    }

    #[test]
    fn version_1_is_read_to_the_end_of_its_line() {
        for (line, client_at) in [
            ("PROXY TCP4 192.0.2.1 198.51.100.2 51000 443\r\n", "192.0.2.1:51000"),
            ("PROXY TCP6 2001:db8::1 2001:db8::2 51000 443\r\n", "[2001:db8::1]:51000"),
        ] {
            for length in 0..line.len() {
                let step = client(&line.as_bytes()[..length]);
                assert!(
                    matches!(step, Step::More(more) if length + more <= line.len()),
                    "{step:?}"
                );
            }
            assert_eq!(client(line.as_bytes()), Step::Done(client_at.parse().unwrap()));
        }
    }

    #[test]
    fn what_names_no_client_is_refused() {
        let mut local = SIGNATURE.to_vec();
        local.extend([LOCAL, 0, 0, 0]);
        let mut short = SIGNATURE.to_vec();
        short.extend([PROXY, TCP_OVER_IPV6, 0, 12]);
        short.extend([0; 12]);
        let mut long = SIGNATURE.to_vec();
        long.extend([PROXY, TCP_OVER_IPV4, 255, 255]);
        let endless = vec![b'1'; 200];
        let lines: [&[u8]; 4] = [
            b"PROXY UNKNOWN\r\n",
            b"PROXY TCP4 2001:db8::1 2001:db8::2 1 2\r\n",
            b"PROXY TCP4 192.0.2.1 192.0.2.2 70000 1\r\n",
            b"GET / HTTP/1.1\r\n",
        ];
        let endless: &[u8] = &[TEXT, &endless].concat();
        for bytes in lines.into_iter().chain([&local[..], &short, &long, endless]) {
            assert!(matches!(client(bytes), Step::Bad(_)), "{:?}", client(bytes));
        }
    }
}
