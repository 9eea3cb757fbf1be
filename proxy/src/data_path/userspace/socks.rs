//! SOCKS5, client side, as far as tailscaled's server speaks it: <https://www.rfc-editor.org/rfc/rfc1928>, without
//! authentication, with addresses only.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use tokio::{
    io::AsyncWriteExt as _,
    net::{TcpStream, UdpSocket},
};

use super::step::{self, Step, take};

const VERSION: u8 = 5;
const NO_AUTHENTICATION: u8 = 0;
const IPV4: u8 = 1;
const NAME: u8 = 3;
const IPV6: u8 = 4;

/// How long the server may take: it gives up connecting after five seconds itself.
const PATIENCE: Duration = Duration::from_secs(6);

/// The longest header of a datagram: reserved bytes, fragment, kind, address, port.
pub(super) const DATAGRAM_HEADER: usize = 3 + 1 + 16 + 2;

#[derive(Clone, Copy, Debug)]
enum Command {
    Connect = 1,
    Associate = 3,
}

/// A connection to `to`, made by the server.
pub(super) async fn connect(server: SocketAddr, to: SocketAddr) -> io::Result<TcpStream> {
    ask(server, Command::Connect, to).await.map(|(stream, _)| stream)
}

/// A socket whose datagrams the server relays, for as long as the connection lasts.
pub(super) async fn associate(server: SocketAddr) -> io::Result<(TcpStream, UdpSocket)> {
    // Where we shall send from is not known yet, which zeros say.
    let unspecified = SocketAddr::new(
        if server.is_ipv4() { IpAddr::from([0; 4]) } else { IpAddr::from([0; 16]) },
        0,
    );
    let (stream, relay) = ask(server, Command::Associate, unspecified).await?;
    let own = SocketAddr::new(stream.local_addr()?.ip(), 0);
    let socket = UdpSocket::bind(own).await?;
    socket.connect(relay).await?;
    Ok((stream, socket))
}

async fn ask(
    server: SocketAddr,
    command: Command,
    to: SocketAddr,
) -> io::Result<(TcpStream, SocketAddr)> {
    let work = async {
        let mut stream = TcpStream::connect(server).await?;
        stream.set_nodelay(true)?;
        // The server asks for nothing that would have to be seen first.
        let mut greeting = vec![VERSION, 1, NO_AUTHENTICATION, VERSION, command as u8, 0];
        append(&mut greeting, to);
        stream.write_all(&greeting).await?;
        let bound = step::read(&mut stream, PATIENCE, answer).await?;
        Ok((stream, bound))
    };
    let asked = tokio::time::timeout(PATIENCE, work).await;
    asked.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// Reads what the server says to the greeting and the request: the address that it has bound.
pub(crate) fn answer(bytes: &[u8]) -> Step<SocketAddr> {
    let mut rest = bytes;
    let parsed = (|| {
        match take(&mut rest, 2)? {
            [VERSION, NO_AUTHENTICATION] => {}
            [VERSION, _] => return Err(Step::Bad("the SOCKS5 server wants authentication")),
            _ => return Err(Step::Bad("not a SOCKS5 server")),
        }
        match take(&mut rest, 3)? {
            [VERSION, 0, _] => {}
            [VERSION, code, _] => return Err(Step::Bad(refusal(*code))),
            _ => return Err(Step::Bad("not a SOCKS5 server")),
        }
        address(&mut rest)
    })();
    parsed.map_or_else(|step| step, Step::Done)
}

fn address(bytes: &mut &[u8]) -> Result<SocketAddr, Step<SocketAddr>> {
    let ip = match take(bytes, 1)? {
        [IPV4] => take(bytes, 4)?.try_into().map(|octets: [u8; 4]| IpAddr::from(octets)),
        [IPV6] => take(bytes, 16)?.try_into().map(|octets: [u8; 16]| IpAddr::from(octets)),
        [NAME] => return Err(Step::Bad("the SOCKS5 server answers with a name")),
        _ => return Err(Step::Bad("the SOCKS5 server answers with an unknown kind of address")),
    };
    let port = take(bytes, 2)?.try_into().map(u16::from_be_bytes);
    match (ip, port) {
        (Ok(ip), Ok(port)) => Ok(SocketAddr::new(ip, port)),
        _ => Err(Step::Bad("an address that is none")),
    }
}

/// What a code of the server's means. tailscaled tells nothing but that it could not.
fn refusal(code: u8) -> &'static str {
    match code {
        2 => "tailscaled's SOCKS5 server does not allow it",
        3 => "tailscaled's SOCKS5 server: network unreachable",
        4 => "tailscaled's SOCKS5 server: host unreachable",
        5 => "tailscaled's SOCKS5 server: connection refused",
        7 => "tailscaled's SOCKS5 server does not know the command",
        8 => "tailscaled's SOCKS5 server does not know the family",
        _ => "tailscaled's SOCKS5 server could not connect",
    }
}

fn append(to: &mut Vec<u8>, address: SocketAddr) {
    match address.ip() {
        IpAddr::V4(ip) => {
            to.push(IPV4);
            to.extend(ip.octets());
        }
        IpAddr::V6(ip) => {
            to.push(IPV6);
            to.extend(ip.octets());
        }
    }
    to.extend(address.port().to_be_bytes());
}

/// What precedes the payload of datagrams to `to`.
pub(super) fn datagram_header(to: SocketAddr) -> Vec<u8> {
    let mut header = Vec::with_capacity(DATAGRAM_HEADER);
    header.extend([0; 3]);
    append(&mut header, to);
    header
}

/// Where a relayed datagram comes from, and its payload. Fragments are not put together.
pub(crate) fn datagram(bytes: &[u8]) -> Option<(SocketAddr, &[u8])> {
    let mut rest = bytes.strip_prefix(&[0; 3])?;
    let from = address(&mut rest).ok()?;
    Some((from, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUND: &[u8] = &[5, 0, 5, 0, 0, 1, 100, 64, 0, 7, 0x30, 0x39];

    #[test]
    fn an_answer_is_read_to_its_end_and_not_further() {
        for length in 0..BOUND.len() {
            let step = answer(&BOUND[..length]);
            assert!(matches!(step, Step::More(more) if length + more <= BOUND.len()), "{step:?}");
        }
        assert_eq!(answer(BOUND), Step::Done("100.64.0.7:12345".parse().unwrap()));
        let mut v6 = vec![5, 0, 5, 0, 0, 4];
        v6.extend([0; 15]);
        v6.extend([1, 0, 80]);
        assert_eq!(answer(&v6), Step::Done("[::1]:80".parse().unwrap()));
    }

    #[test]
    fn refusals_are_told_apart() {
        assert!(
            matches!(answer(&[5, 0, 5, 1, 0]), Step::Bad(why) if why.contains("could not connect"))
        );
        assert!(matches!(answer(&[5, 0, 5, 5, 0]), Step::Bad(why) if why.contains("refused")));
        assert!(matches!(answer(&[5, 255]), Step::Bad(why) if why.contains("authentication")));
        assert!(matches!(answer(b"HT"), Step::Bad(_)));
    }

    #[test]
    fn a_datagram_is_what_follows_its_header() {
        for to in ["192.0.2.7:53", "[2001:db8::7]:53"] {
            let to: SocketAddr = to.parse().unwrap();
            let mut bytes = datagram_header(to);
            assert!(bytes.len() <= DATAGRAM_HEADER);
            bytes.extend(b"question");
            assert_eq!(datagram(&bytes), Some((to, &b"question"[..])));
            for cut in 0..bytes.len() - 8 {
                assert_eq!(datagram(&bytes[..cut]), None);
            }
        }
        assert_eq!(datagram(&[0, 0, 1, 1, 1, 2, 3, 4, 0, 80]), None, "a fragment");
    }
}
