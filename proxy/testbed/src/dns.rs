//! A name server of the cluster: names with addresses and a time to live, changed while it serves.

use std::{
    collections::BTreeMap,
    net::{IpAddr, UdpSocket},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use anyhow::{Context as _, Result};
use hickory_proto::{
    op::{Message, ResponseCode},
    rr::{RData, Record, RecordType},
};

use crate::Namespace;

/// Addresses by name, lower case, with the final dot.
type Zone = Arc<Mutex<BTreeMap<String, Vec<IpAddr>>>>;

/// A name server, until dropped.
#[derive(Debug)]
pub struct NameServer {
    zone: Zone,
    silent: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl NameServer {
    /// Serves on port 53 of an address in the namespace. `ttl` is in seconds.
    pub fn new(namespace: &Namespace, address: IpAddr, ttl: u32) -> Result<Self> {
        let socket = namespace
            .enter(|| UdpSocket::bind((address, 53)))
            .with_context(|| format!("bind {address}:53"))?;
        // How soon a dropped server notices.
        socket.set_read_timeout(Some(Duration::from_millis(50)))?;
        let zone = Zone::default();
        let (stop, silent) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        let known = (Arc::clone(&zone), Arc::clone(&stop), Arc::clone(&silent));
        let thread = std::thread::spawn(move || {
            let (zone, stop, silent) = known;
            let mut buffer = vec![0; 4096];
            while !stop.load(Ordering::Relaxed) {
                let Ok((length, peer)) = socket.recv_from(&mut buffer) else { continue };
                if silent.load(Ordering::Relaxed) {
                    continue;
                }
                if let Some(answer) = answer(&buffer[..length], &zone, ttl) {
                    let _ = socket.send_to(&answer, peer);
                }
            }
        });
        Ok(Self { zone, silent, stop, thread: Some(thread) })
    }

    /// The addresses of a name from now on; none: there is no such name.
    pub fn set(&self, name: &str, addresses: &[IpAddr]) {
        let name = format!("{}.", name.trim_end_matches('.').to_ascii_lowercase());
        let mut zone = self.zone.lock().unwrap_or_else(PoisonError::into_inner);
        if addresses.is_empty() {
            zone.remove(&name);
        } else {
            zone.insert(name, addresses.to_vec());
        }
    }

    /// Whether it answers nobody.
    pub fn silence(&self, silent: bool) {
        self.silent.store(silent, Ordering::Relaxed);
    }
}

impl Drop for NameServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn answer(question: &[u8], zone: &Zone, ttl: u32) -> Option<Vec<u8>> {
    let asked = Message::from_vec(question).ok()?;
    let query = asked.queries.first()?.clone();
    let mut answer = Message::response(asked.metadata.id, asked.metadata.op_code);
    answer.metadata.authoritative = true;
    let name = query.name().to_string().to_ascii_lowercase();
    let zone = zone.lock().unwrap_or_else(PoisonError::into_inner);
    match zone.get(&name) {
        None => answer.metadata.response_code = ResponseCode::NXDomain,
        Some(addresses) => {
            let of_type =
                addresses.iter().filter_map(|address| match (address, query.query_type()) {
                    (IpAddr::V4(v4), RecordType::A) => Some(RData::A((*v4).into())),
                    (IpAddr::V6(v6), RecordType::AAAA) => Some(RData::AAAA((*v6).into())),
                    _ => None,
                });
            for data in of_type {
                answer.add_answer(Record::from_rdata(query.name().clone(), ttl, data));
            }
        }
    }
    answer.add_query(query);
    answer.to_vec().ok()
}
