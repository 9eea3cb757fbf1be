//! What an API server takes and refuses, case by case.

use std::collections::BTreeSet;

use anyhow::Result;
use kube::{
    Client, Error,
    api::{Patch, PatchParams, PostParams},
};
use operator::crd::{
    Connector, DnsConfig, PeerRelay, ProxyClass, ProxyGroup, ProxyGroupPolicy, Recorder, Tailnet,
};
use serde_json::json;

use super::{
    kernel_or_skip,
    server::{named, object, objects, read_all, start, yaml},
};

#[path = "table.rs"]
mod table;

use table::{CASES, Case};

/// What became of a case: nothing if it went as it should.
async fn try_case(client: &Client, index: usize, case: &Case) -> Result<Option<String>> {
    let api = objects(client, case.kind);
    let name = format!("case-{}-{index}", case.number);
    let spec = yaml(case.spec);
    let outcome = match case.before {
        Some(before) => {
            let before = object(case.kind, &name, &yaml(before))?;
            api.create(&PostParams::default(), &before).await?;
            // A merge patch keeps what it does not name, as users edit.
            let patch = Patch::Merge(json!({ "spec": spec }));
            api.patch(&name, &PatchParams::default(), &patch).await
        }
        None => api.create(&PostParams::default(), &object(case.kind, &name, &spec)?).await,
    };
    let wrong = match (outcome, case.refused) {
        (Ok(_), None) => None,
        (Ok(_), Some(field)) => Some(format!("accepted, though {field} is wrong")),
        (Err(Error::Api(status)), Some(field)) if status.code == 422 => {
            let fields = named(&status);
            let is_named = fields.iter().any(|each| each == field);
            (!is_named).then(|| format!("names {fields:?}, not {field}: {}", status.message))
        }
        (Err(error), _) => Some(format!("refused: {error}")),
    };
    Ok(wrong.map(|wrong| format!("{} {} `{}`: {wrong}", case.number, case.kind, case.spec)))
}

#[test]
fn what_is_accepted_and_what_is_refused_by_which_field() {
    kernel_or_skip!();
    let numbers: BTreeSet<_> = CASES.iter().map(|case| case.number).collect();
    // 33 is of fields that nobody knows: in `content`.
    assert_eq!(numbers, (1..=32).chain(34..=37).collect(), "a case of the contract is missing");
    let server = start();
    let run = async |client: Client| {
        let mut wrong = Vec::new();
        for (index, case) in CASES.iter().enumerate() {
            wrong.extend(try_case(&client, index, case).await?);
        }
        // Whatever was accepted can be read: what cannot would hide all others of its kind.
        let read = [
            read_all::<Connector>(&client).await?.len(),
            read_all::<DnsConfig>(&client).await?.len(),
            read_all::<PeerRelay>(&client).await?.len(),
            read_all::<ProxyClass>(&client).await?.len(),
            read_all::<ProxyGroup>(&client).await?.len(),
            read_all::<ProxyGroupPolicy>(&client).await?.len(),
            read_all::<Recorder>(&client).await?.len(),
            read_all::<Tailnet>(&client).await?.len(),
        ];
        Ok((wrong, read))
    };
    let (wrong, read) = server.admin(run).unwrap();
    assert!(wrong.is_empty(), "{} cases:\n{}", wrong.len(), wrong.join("\n"));
    let accepted = CASES.iter().filter(|case| case.refused.is_none() || case.before.is_some());
    assert_eq!(read.iter().sum::<usize>(), accepted.count());
    assert!(!read.contains(&0), "a kind of which nothing was accepted: {read:?}");
}
