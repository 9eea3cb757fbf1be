//! What control servers answer. Every reader gets every input: a mutant of one answer is a strange form of another.

use std::time::{Duration, SystemTime};

use operator::tailnet_api::{
    Failure, VipService,
    answers::{self, LONGEST_TEXT},
    owner::{OWNERS, Owner, Release},
};

/// An answer of either control server, the text of an error, a header, an annotation.
pub fn tailnet_api(data: &[u8]) {
    for devices in answers::devices(data).into_iter().chain(answers::nodes(data)) {
        for device in read(devices).unwrap_or_default() {
            assert!(device.addresses.is_sorted_by_key(std::net::IpAddr::is_ipv6), "{device:?}");
        }
    }
    for services in answers::services(data) {
        for service in read(services).unwrap_or_default() {
            let [again, _] = answers::services(answers::written(&service).as_bytes());
            assert_eq!(again, Ok(vec![service]), "changed by being written and read");
        }
    }
    for keys in answers::keys(data) {
        read(keys);
    }
    for secret in answers::made_keys(data) {
        read(secret);
    }
    if let Some((_, life)) = read(answers::token(data)) {
        assert!(life <= Duration::from_hours(24));
    }
    read(answers::user(data, "ops"));
    read(answers::policy(data));
    let message = answers::message(data);
    assert!(!message.is_empty(), "an error without a reason");
    one_line(&message);
    let pause = answers::pause(data, SystemTime::UNIX_EPOCH);
    assert!(pause.is_none_or(|pause| pause <= Duration::from_hours(1)), "{pause:?}");
    if let Ok(text) = std::str::from_utf8(data) {
        owners(text);
    }
}

fn read<T>(result: Result<T, Failure>) -> Option<T> {
    result
        .map_err(|failure| {
            assert!(matches!(failure, Failure::Malformed(_)), "no failure of reading: {failure}");
            if let Failure::Malformed(why) = failure {
                one_line(&why);
            }
        })
        .ok()
}

fn one_line(text: &str) {
    assert!(text.chars().count() <= LONGEST_TEXT, "{} characters", text.chars().count());
    assert!(!text.contains(|c: char| c.is_control()), "{text:?}");
}

/// Whoever has entered itself is there, once, and can leave.
fn owners(text: &str) {
    #[expect(clippy::expect_used, reason = "the name is a good one")]
    let mut service = VipService::new("svc:web".parse().expect("a name"));
    service.annotations.insert(OWNERS.to_owned(), text.to_owned());
    for owner in
        [Owner::operator("n1CNTRL"), Owner::resource("n1CNTRL", "ProxyGroup", "kube", "uid-1")]
    {
        let Ok(annotations) = owner.claim(Some(&service)) else { continue };
        let claimed = VipService { annotations, ..service.clone() };
        assert_eq!(owner.claim(Some(&claimed)).as_ref(), Ok(&claimed.annotations), "twice");
        let released = owner.release(&claimed);
        let left = matches!(released, Ok(Release::Delete | Release::Update(_)));
        assert!(left, "entered and not there: {released:?}");
        if let Ok(Release::Update(left)) = released {
            assert_eq!(owner.release(&left), Ok(Release::NotOurs), "still there");
        }
    }
}
