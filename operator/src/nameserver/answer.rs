//! One question and its answer: bytes in, bytes out.

use hickory_proto::{
    op::{Edns, Message, MessageType, OpCode, Query, ResponseCode},
    rr::{DNSClass, Name, RData, Record, RecordType, rdata::SOA},
    serialize::binary::{BinEncodable as _, BinEncoder},
};

use super::records::{Addresses, Found, Records};

/// Larger packets may be cut into fragments, which are lost too easily (DNS flag day 2020).
const UDP_LIMIT: u16 = 1232;
/// What everybody takes (RFC 1035, 4.2.1).
const UDP_LEAST: u16 = 512;

/// How a question came.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Transport {
    /// An answer that is too long is cut, and says so.
    Udp,
    /// An answer is never too long.
    Tcp,
}

/// The answer to a packet, if it is to have one: what is itself an answer, or shorter than a header, has none.
/// Without records every question is answered with SERVFAIL: whoever asks tries again.
pub fn answer(packet: &[u8], records: Option<&Records>, transport: Transport) -> Option<Vec<u8>> {
    let header = packet.first_chunk::<12>()?;
    let [id_0, id_1, flags, _, counts @ ..] = header;
    if flags & 0x80 != 0 {
        return None;
    }
    let id = u16::from_be_bytes([*id_0, *id_1]);
    let code = OpCode::from_u8(flags >> 3 & 0xf);
    // Counts are looked at before anything is reserved for what they promise.
    let is_question = matches!(counts, [0, 1, 0, 0, 0, 0, 0, 0..=2]);
    let message = Message::from_vec(packet).ok().filter(|_| is_question);
    let reply = match &message {
        Some(question) => reply(question, records),
        None if code == OpCode::Query => Message::error_msg(id, code, ResponseCode::FormErr),
        None => Message::error_msg(id, code, ResponseCode::NotImp),
    };
    let limit = match (transport, &message) {
        (Transport::Tcp, _) => u16::MAX,
        (Transport::Udp, Some(question)) => question.max_payload().clamp(UDP_LEAST, UDP_LIMIT),
        (Transport::Udp, None) => UDP_LEAST,
    };
    encode(&reply, limit)
        .or_else(|| encode(&Message::error_msg(id, code, ResponseCode::ServFail), limit))
}

fn encode(message: &Message, limit: u16) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(UDP_LEAST.into());
    let mut encoder = BinEncoder::new(&mut bytes);
    encoder.set_max_size(limit);
    message.emit(&mut encoder).ok()?;
    Some(bytes)
}

fn reply(question: &Message, records: Option<&Records>) -> Message {
    let asked = &question.metadata;
    let mut reply = Message::new(asked.id, MessageType::Response, asked.op_code);
    reply.metadata.recursion_desired = asked.recursion_desired;
    reply.metadata.checking_disabled = asked.checking_disabled;
    reply.add_queries(question.queries.iter().cloned());
    if let Some(theirs) = &question.edns {
        let mut edns = Edns::new();
        edns.set_max_payload(UDP_LIMIT).set_version(0);
        edns.set_dnssec_ok(theirs.flags().dnssec_ok);
        reply.set_edns(edns);
        if theirs.version() > 0 {
            reply.metadata.response_code = ResponseCode::BADVERS;
            return reply;
        }
    }
    let query = match (asked.op_code, question.queries.as_slice()) {
        (OpCode::Query, [query]) => query,
        (OpCode::Query, _) => {
            reply.metadata.response_code = ResponseCode::FormErr;
            return reply;
        }
        _ => {
            reply.metadata.response_code = ResponseCode::NotImp;
            return reply;
        }
    };
    let transfers = [RecordType::AXFR, RecordType::IXFR];
    if query.query_class() != DNSClass::IN || transfers.contains(&query.query_type()) {
        reply.metadata.response_code = ResponseCode::Refused;
        return reply;
    }
    let Some(records) = records else {
        reply.metadata.response_code = ResponseCode::ServFail;
        return reply;
    };
    look_up(query, records, &mut reply);
    reply
}

fn look_up(query: &Query, records: &Records, reply: &mut Message) {
    let zone = match records.find(query.name()) {
        Found::Elsewhere => {
            reply.metadata.response_code = ResponseCode::Refused;
            return;
        }
        Found::Here(addresses, zone) => {
            reply.add_answers(data(addresses, query.query_type()).map(|data| {
                // Pods come and go: nobody is to remember their addresses.
                Record::from_rdata(query.name().clone(), 0, data)
            }));
            zone
        }
        Found::NotHere { zone, exists } => {
            if !exists {
                reply.metadata.response_code = ResponseCode::NXDomain;
            }
            zone
        }
    };
    reply.metadata.authoritative = true;
    if reply.answers.is_empty() {
        // It says how long nobody is to remember that there is nothing (RFC 2308).
        reply.add_authority(start_of_authority(zone));
    }
}

fn data(addresses: &Addresses, of: RecordType) -> impl Iterator<Item = RData> {
    let wants = move |one: RecordType| of == one || of == RecordType::ANY;
    let v4 = addresses.v4.iter().filter(move |_| wants(RecordType::A));
    let v6 = addresses.v6.iter().filter(move |_| wants(RecordType::AAAA));
    v4.map(|one| RData::A((*one).into())).chain(v6.map(|one| RData::AAAA((*one).into())))
}

fn start_of_authority(zone: Name) -> Record {
    let soa = SOA::new(zone.clone(), zone.clone(), 1, 3600, 600, 86_400, 0);
    Record::from_rdata(zone, 0, RData::SOA(soa))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn records() -> Records {
        let addresses: Vec<_> = (0..100).map(|last| format!("\"192.0.2.{last}\"")).collect();
        let many = addresses.join(",");
        let text = format!(
            r#"{{"version":"v1alpha1","ip4":{{"db.tail1.ts.net":["192.0.2.1"],"many.tail1.ts.net":[{many}],
            "none.tail1.ts.net":[]}},"ip6":{{"db.tail1.ts.net":["2001:db8::1"],"six.tail1.ts.net":["2001:db8::6"]}}}}"#
        );
        Records::read(text.as_bytes()).unwrap().0
    }

    fn question(name: &str, of: RecordType) -> Message {
        let mut message = Message::query();
        message.metadata.id = 77;
        message.metadata.recursion_desired = true;
        message.add_query(Query::query(Name::from_ascii(name).unwrap(), of));
        message
    }

    fn ask(question: &Message, transport: Transport) -> Message {
        let packet = question.to_vec().unwrap();
        let reply = answer(&packet, Some(&records()), transport).unwrap();
        let reply = Message::from_vec(&reply).unwrap();
        assert_eq!(reply.metadata.id, 77);
        assert_eq!(reply.metadata.message_type, MessageType::Response);
        reply
    }

    /// The answer in one line: its code, whether it is ours to give, records of each section.
    fn told(name: &str, of: RecordType) -> String {
        let reply = ask(&question(name, of), Transport::Udp);
        let ours = if reply.metadata.authoritative { "aa" } else { "-" };
        let answers: Vec<_> = reply.answers.iter().map(|one| one.data.to_string()).collect();
        for record in reply.answers.iter().chain(&reply.authorities) {
            assert_eq!(record.ttl, 0);
        }
        let code = reply.metadata.response_code;
        format!("{code:?} {ours} {} {}", answers.join(","), reply.authorities.len())
    }

    #[test]
    fn names_have_their_addresses_and_what_is_missing_is_told_apart() {
        assert_eq!(told("db.tail1.ts.net.", RecordType::A), "NoError aa 192.0.2.1 0");
        assert_eq!(told("DB.tail1.TS.net.", RecordType::AAAA), "NoError aa 2001:db8::1 0");
        assert_eq!(told("db.tail1.ts.net.", RecordType::ANY), "NoError aa 192.0.2.1,2001:db8::1 0");
        // The name is there and has no such record: an error would end a resolver's search in the other family too.
        for (name, of) in [
            ("six.tail1.ts.net.", RecordType::A),
            ("none.tail1.ts.net.", RecordType::A),
            ("db.tail1.ts.net.", RecordType::TXT),
            ("db.tail1.ts.net.", RecordType::HTTPS),
            ("tail1.ts.net.", RecordType::A),
            ("ts.net.", RecordType::SOA),
        ] {
            assert_eq!(told(name, of), "NoError aa  1", "{name} {of}");
        }
        assert_eq!(told("gone.tail1.ts.net.", RecordType::A), "NXDomain aa  1");
        assert_eq!(told("x.db.tail1.ts.net.", RecordType::MX), "NXDomain aa  1");
        assert_eq!(told("example.com.", RecordType::A), "Refused -  0");
        assert_eq!(told("ts.net.", RecordType::AXFR), "Refused -  0");
        let mut chaos = question("db.tail1.ts.net.", RecordType::A);
        chaos.queries[0].set_query_class(DNSClass::CH);
        assert_eq!(ask(&chaos, Transport::Udp).metadata.response_code, ResponseCode::Refused);
    }

    #[test]
    fn without_records_nothing_is_denied() {
        let packet = question("db.tail1.ts.net.", RecordType::A).to_vec().unwrap();
        let reply = Message::from_vec(&answer(&packet, None, Transport::Udp).unwrap()).unwrap();
        assert_eq!(reply.metadata.response_code, ResponseCode::ServFail);
    }

    #[test]
    fn the_question_comes_back_as_it_was_asked() {
        let reply = ask(&question("Db.Tail1.ts.NET.", RecordType::A), Transport::Udp);
        assert_eq!(reply.queries[0].name().to_ascii(), "Db.Tail1.ts.NET.");
        assert_eq!(reply.answers[0].name.to_ascii(), "Db.Tail1.ts.NET.");
        assert!(reply.metadata.recursion_desired && !reply.metadata.recursion_available);
    }

    #[test]
    fn an_answer_that_is_too_long_is_cut_to_what_the_asker_takes() {
        let mut asked = question("many.tail1.ts.net.", RecordType::A);
        let size = |asked: &Message, transport| {
            let packet = asked.to_vec().unwrap();
            answer(&packet, Some(&records()), transport).unwrap().len()
        };
        let cut = ask(&asked, Transport::Udp);
        assert!(cut.metadata.truncation && size(&asked, Transport::Udp) <= 512);
        let whole = ask(&asked, Transport::Tcp);
        assert!(!whole.metadata.truncation && whole.answers.len() == 100);
        let mut edns = Edns::new();
        edns.set_max_payload(4096);
        asked.set_edns(edns);
        let longer = ask(&asked, Transport::Udp);
        assert!(longer.metadata.truncation && longer.answers.len() > cut.answers.len());
        assert!(size(&asked, Transport::Udp) <= 1232);
        // Who says that it takes less than everybody takes is not believed.
        let mut edns = Edns::new();
        edns.set_max_payload(10);
        asked.set_edns(edns);
        assert!(!ask(&asked, Transport::Udp).answers.is_empty());
    }

    #[test]
    fn what_is_no_question_is_told_so_or_not_answered() {
        let code = |packet: &[u8]| {
            let reply = answer(packet, Some(&records()), Transport::Udp)?;
            let reply = Message::from_vec(&reply).unwrap();
            Some((reply.metadata.id, reply.metadata.response_code))
        };
        assert_eq!(code(&[0; 11]), None);
        let good = question("db.tail1.ts.net.", RecordType::A).to_vec().unwrap();
        let with = |at: usize, byte: u8| {
            let mut packet = good.clone();
            packet[at] = byte;
            packet
        };
        // An answer, which could otherwise be sent to and fro for ever.
        assert_eq!(code(&with(2, 0x80)), None);
        for (at, byte) in [(5, 0), (5, 2), (4, 0xff), (7, 1), (9, 1), (11, 200), (12, 0xff)] {
            assert_eq!(code(&with(at, byte)), Some((77, ResponseCode::FormErr)), "{at} {byte}");
        }
        assert_eq!(code(&good[..20]), Some((77, ResponseCode::FormErr)));
        // An update.
        assert_eq!(code(&with(2, 5 << 3)), Some((77, ResponseCode::NotImp)));
        let mut asked = question("db.tail1.ts.net.", RecordType::A);
        let mut edns = Edns::new();
        edns.set_version(1);
        asked.set_edns(edns);
        // 16 is BADVERS here, and BADSIG elsewhere.
        assert_eq!(u16::from(ask(&asked, Transport::Udp).metadata.response_code), 16);
    }

    proptest! {
        #[test]
        fn no_packet_ends_the_nameserver_and_no_answer_is_longer_than_it_may_be(
            mut packet in prop::collection::vec(any::<u8>(), 0..200), like_one in any::<bool>(),
            at in any::<prop::sample::Index>(), byte in any::<u8>(),
        ) {
            if like_one {
                // Nearly right is harder than random.
                packet = question("db.tail1.ts.net.", RecordType::A).to_vec().unwrap();
                let at = at.index(packet.len());
                packet[at] = byte;
            }
            if let Some(reply) = answer(&packet, Some(&records()), Transport::Udp) {
                prop_assert!(reply.len() <= 1232 && reply[..2] == packet[..2] && reply[2] & 0x80 != 0);
            }
        }
    }
}
