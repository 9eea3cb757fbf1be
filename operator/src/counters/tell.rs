//! What objects say of their traffic: figures in the status of those that have a place for them, and Events when the data path
//! or a target changes.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
};

use k8s_openapi::api::{core::v1::Service, networking::v1::Ingress};
use kube::{
    Api, Resource,
    api::{Patch, PatchParams},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{Parent, Report, Reports};
use crate::{
    context::{Context, Kind},
    crd::{
        Connector, ProxyGroup,
        data_path::{DataPathStatus, PortTraffic, TargetStatus},
    },
    label::ParentKind,
};

/// Who writes these figures. Nobody else does, and it writes nothing else.
const FIELD_MANAGER: &str = "sluice-operator-counters";

/// What was told last.
#[derive(Default)]
pub(super) struct Told(BTreeMap<Parent, Last>);

#[derive(Default)]
struct Last {
    mode: Option<String>,
    failing: BTreeSet<String>,
    figures: Option<Value>,
}

/// An Event: how it is meant, its reason, and its words.
type News = (Kind, &'static str, String);

impl Told {
    /// Tells what is news.
    pub(super) async fn tell(&mut self, context: &Context, reports: &Reports) {
        for report in &reports.parents {
            let last = self.0.entry(report.parent.clone()).or_default();
            let news = last.news(report);
            if !news.is_empty() {
                events(context, &report.parent, &news).await;
            }
            // What never was read says nothing; what is not read now says what it said.
            if report.mode.is_some() || !report.ports.is_empty() {
                last.write(context, report).await;
            }
        }
        let there: BTreeSet<_> = reports.parents.iter().map(|report| &report.parent).collect();
        self.0.retain(|parent, _| there.contains(parent));
    }
}

impl Last {
    fn news(&mut self, report: &Report) -> Vec<News> {
        let mut news = Vec::new();
        if let Some(mode) = &report.mode {
            if let Some(before) = self.mode.as_ref().filter(|before| *before != mode) {
                let why = report.reason.as_ref().map_or_else(String::new, |why| format!(": {why}"));
                let kind = if why.is_empty() { Kind::Normal } else { Kind::Warning };
                let note = format!("traffic is carried by {mode}, before by {before}{why}");
                news.push((kind, "DataPathChanged", note));
            }
            self.mode = Some(mode.clone());
        }
        let failing = report.targets.iter().filter(|target| !target.ready);
        for target in failing.clone().filter(|target| !self.failing.contains(&target.target)) {
            let reason = target.reason.as_deref().unwrap_or("not installed");
            let message = target.message.as_deref().unwrap_or("the proxy does not say why");
            let note = format!("{} is not reached ({reason}): {message}", target.target);
            news.push((Kind::Warning, "TargetFailing", note));
        }
        let failing: BTreeSet<_> = failing.map(|target| target.target.clone()).collect();
        for target in report.targets.iter().filter(|target| target.ready) {
            if self.failing.contains(&target.target) {
                news.push((
                    Kind::Normal,
                    "TargetReached",
                    format!("{} is reached again", target.target),
                ));
            }
        }
        self.failing = failing;
        news
    }

    async fn write(&mut self, context: &Context, report: &Report) {
        let parent = &report.parent;
        let figures = match serde_json::to_value(figures(report)) {
            Ok(figures) => figures,
            Err(error) => {
                tracing::error!(%error, ?parent, "figures without a form in JSON");
                return;
            }
        };
        if self.figures.as_ref() == Some(&figures) {
            return;
        }
        let outcome = if parent.kind == ParentKind::Connector.label() {
            write::<Connector>(context, parent, &figures, self.figures.is_none()).await
        } else if parent.kind == ParentKind::ProxyGroup.label() {
            write::<ProxyGroup>(context, parent, &figures, self.figures.is_none()).await
        } else {
            Ok(())
        };
        match outcome {
            Ok(()) => self.figures = Some(figures),
            Err(error) => tracing::warn!(%error, ?parent, "its traffic is told later"),
        }
    }
}

/// Writes the figures; looks first whether they are there already, where that is not known.
async fn write<K>(
    context: &Context,
    parent: &Parent,
    figures: &Value,
    look: bool,
) -> Result<(), kube::Error>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
    K: serde::Serialize,
    <K as Resource>::DynamicType: Default,
{
    let api: Api<K> = Api::all(context.client.clone());
    if look {
        let Some(found) = api.get_opt(&parent.name).await? else { return Ok(()) };
        let found = serde_json::to_value(&found).unwrap_or_default();
        if found.pointer("/status/dataPath") == Some(figures) {
            return Ok(());
        }
    }
    let patch = json!({
        "apiVersion": K::api_version(&()), "kind": K::kind(&()),
        "metadata": { "name": parent.name }, "status": { "dataPath": figures },
    });
    let params = PatchParams::apply(FIELD_MANAGER).force();
    match api.patch_status(&parent.name, &params, &Patch::Apply(patch)).await {
        // Deleted meanwhile.
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        outcome => outcome.map(drop),
    }
}

fn figures(report: &Report) -> DataPathStatus {
    let ports = report.ports.iter().map(|port| PortTraffic {
        name: Some(port.rule.clone()).filter(|rule| !rule.is_empty()),
        protocol: port.protocol.clone(),
        // Of a range its first port.
        port: port.port.split('-').next().and_then(|first| first.parse().ok()).unwrap_or(0),
        packets: port.original_packets,
        bytes: port.original_bytes,
        reply_packets: port.reply_packets,
        reply_bytes: port.reply_bytes,
        flows: port.flows,
    });
    let targets = report.targets.iter().map(|target| TargetStatus {
        target: target.target.clone(),
        ready: target.ready,
        reason: target.reason.clone(),
        message: target.message.clone(),
    });
    DataPathStatus {
        mode: report.mode.clone(),
        reason: report.reason.clone(),
        generation: report.generation.clone(),
        ports: ports.collect(),
        targets: targets.collect(),
    }
}

async fn events(context: &Context, parent: &Parent, news: &[News]) {
    let client = context.client.clone();
    let here = || Api::namespaced(client.clone(), &parent.namespace);
    let kind = parent.kind.as_str();
    if kind == ParentKind::Service.label() {
        let api: Api<Service> = Api::namespaced(client, &parent.namespace);
        tell(context, &api, parent, news).await;
    } else if kind == ParentKind::Ingress.label() {
        tell::<Ingress>(context, &here(), parent, news).await;
    } else if kind == ParentKind::Connector.label() {
        tell::<Connector>(context, &Api::all(client), parent, news).await;
    } else if kind == ParentKind::ProxyGroup.label() {
        tell::<ProxyGroup>(context, &Api::all(client), parent, news).await;
    }
}

async fn tell<K>(context: &Context, api: &Api<K>, parent: &Parent, news: &[News])
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    match api.get_opt(&parent.name).await {
        Ok(Some(object)) => {
            for (kind, reason, note) in news {
                context.events.tell(&object, *kind, reason, note).await;
            }
        }
        Ok(None) => {}
        Err(error) => tracing::warn!(%error, ?parent, "an Event could not be told"),
    }
}
