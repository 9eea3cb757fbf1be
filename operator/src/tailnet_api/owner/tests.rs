use super::{OWNERS, Owner, OwnerError, Release};
use crate::tailnet_api::VipService;

fn web(owners: &str) -> VipService {
    let mut service = VipService::new("svc:web".parse().unwrap());
    service.annotations.insert("other".to_owned(), "kept".to_owned());
    if !owners.is_empty() {
        service.annotations.insert(OWNERS.to_owned(), owners.to_owned());
    }
    service
}

fn group() -> Owner {
    Owner::resource("n1CNTRL", "ProxyGroup", "kube", "uid-1")
}

const ONE: &str = r#"{"ownerRefs":[{"operatorID":"n1CNTRL"}]}"#;
const BOTH: &str = r#"{"ownerRefs":[{"operatorID":"n1CNTRL"},{"operatorID":"n2CNTRL"}]}"#;
const GROUP: &str = r#"{"ownerRefs":[{"operatorID":"n1CNTRL","resource":{"kind":"ProxyGroup","name":"kube","uid":"uid-1"}}]}"#;

#[test]
fn what_nobody_has_is_claimed_in_the_words_of_all_operators() {
    let claimed = Owner::operator("n1CNTRL").claim(None).unwrap();
    assert_eq!(claimed.into_iter().collect::<Vec<_>>(), [(OWNERS.to_owned(), ONE.to_owned())]);
    assert_eq!(group().claim(None).unwrap()[OWNERS], GROUP);
}

#[test]
fn operators_share_and_the_last_one_deletes() {
    let (first, second) = (Owner::operator("n1CNTRL"), Owner::operator("n2CNTRL"));
    let shared = second.claim(Some(&web(ONE))).unwrap();
    assert_eq!(shared[OWNERS], BOTH);
    assert_eq!(shared["other"], "kept");
    let Release::Update(left) = second.release(&web(BOTH)).unwrap() else { panic!("not released") };
    assert_eq!(left.annotations, web(ONE).annotations);
    assert_eq!(second.release(&left).unwrap(), Release::NotOurs);
    assert_eq!(first.release(&left).unwrap(), Release::Delete);
    assert!(first.owns_alone(&left) && !first.owns_alone(&web(BOTH)));
}

#[test]
fn what_is_ours_already_comes_back_to_the_letter() {
    let spaced = r#" {"ownerRefs": [ {"operatorID":"n1CNTRL"} ], "later": 1} "#;
    let service = web(spaced);
    assert_eq!(Owner::operator("n1CNTRL").claim(Some(&service)).unwrap(), service.annotations);
    assert_eq!(group().claim(Some(&web(GROUP))).unwrap(), web(GROUP).annotations);
}

#[test]
fn what_another_version_says_is_kept() {
    let later = r#"{"ownerRefs":[{"operatorID":"n1CNTRL","since":"2030"}],"version":2}"#;
    let claimed = Owner::operator("n2CNTRL").claim(Some(&web(later))).unwrap();
    let text = &claimed[OWNERS];
    assert_eq!(Owner::operator("n1CNTRL").claim(Some(&web(later))).unwrap()[OWNERS], later);
    assert!(text.contains(r#""since":"2030""#) && text.contains(r#""version":2"#), "{text}");
}

#[test]
fn what_is_not_ours_is_refused_with_a_remedy() {
    let shared = Owner::operator("n1CNTRL");
    let name = || "svc:web".to_owned();
    for unowned in ["", r#"{"ownerRefs":[]}"#, "{}"] {
        let service = web(unowned);
        assert_eq!(shared.claim(Some(&service)), Err(OwnerError::Unowned(name())), "{unowned}");
        assert_eq!(group().claim(Some(&service)), Err(OwnerError::Unowned(name())));
        assert_eq!(shared.release(&service), Ok(Release::NotOurs));
    }
    let taken =
        OwnerError::Resource { service: name(), kind: "ProxyGroup".into(), name: "kube".into() };
    assert_eq!(shared.claim(Some(&web(GROUP))), Err(taken.clone()));
    assert_eq!(shared.release(&web(GROUP)), Ok(Release::NotOurs), "the group's, not an Ingress's");
    assert_eq!(group().claim(Some(&web(ONE))), Err(OwnerError::Shared(name())));
    assert_eq!(group().claim(Some(&web(BOTH))), Err(OwnerError::Others(name())));
    let elsewhere = Owner::resource("n2CNTRL", "ProxyGroup", "kube", "uid-1");
    assert_eq!(elsewhere.claim(Some(&web(GROUP))), Err(OwnerError::Others(name())));
    let another = Owner::resource("n1CNTRL", "ProxyGroup", "kube", "uid-2");
    assert_eq!(another.claim(Some(&web(GROUP))), Err(taken));
    assert_eq!(another.release(&web(GROUP)), Ok(Release::NotOurs));
    for broken in ["{", r#"{"ownerRefs":{}}"#, "[]x"] {
        let error = shared.claim(Some(&web(broken))).unwrap_err();
        assert!(matches!(error, OwnerError::Unreadable { .. }), "{error}");
        assert!(shared.release(&web(broken)).is_err());
    }
}

#[test]
fn a_resource_may_be_renamed_and_deletes_what_it_has() {
    let renamed = Owner::resource("n1CNTRL", "ProxyGroup", "new", "uid-1");
    let claimed = renamed.claim(Some(&web(GROUP))).unwrap();
    assert_eq!(claimed[OWNERS], GROUP.replace("\"kube\"", "\"new\""));
    assert_eq!(renamed.release(&web(GROUP)).unwrap(), Release::Delete);
}

#[test]
fn an_owner_that_was_entered_twice_leaves_at_once() {
    let twice = r#"{"ownerRefs":[{"operatorID":"n1CNTRL"},{"operatorID":"n1CNTRL"}]}"#;
    assert_eq!(Owner::operator("n1CNTRL").release(&web(twice)).unwrap(), Release::Delete);
}
