//! The cluster's range of node ports, which no API tells: asked for a port that is none, the API server says which are.

use std::ops::RangeInclusive;

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use kube::{
    Api, Client,
    api::{DeleteParams, PostParams},
};
use tokio::sync::OnceCell;

use crate::label;

/// What is asked for, and not to be had.
const NAME: &str = "test-node-port-range";
const NO_PORT: i32 = 777_777;

/// The cluster's range of node ports, once somebody needs it.
pub struct NodePorts {
    services: Api<Service>,
    known: OnceCell<Option<RangeInclusive<u16>>>,
}

impl NodePorts {
    /// Asks in this namespace.
    pub fn new(client: Client, namespace: &str) -> Self {
        Self { services: Api::namespaced(client, namespace), known: OnceCell::new() }
    }

    /// The range; `None` if the API server does not tell. An API server that cannot be asked is asked again next time.
    pub async fn range(&self) -> Option<RangeInclusive<u16>> {
        let known = self.known.get_or_try_init(|| self.ask()).await;
        known
            .map_err(|error| tracing::warn!(%error, "the range of node ports is not known"))
            .ok()?
            .clone()
    }

    async fn ask(&self) -> Result<Option<RangeInclusive<u16>>, kube::Error> {
        let mut service = Service {
            spec: Some(ServiceSpec {
                type_: Some("NodePort".into()),
                ports: Some(vec![ServicePort {
                    name: Some(NAME.into()),
                    port: 8080,
                    protocol: Some("UDP".into()),
                    node_port: Some(NO_PORT),
                    ..ServicePort::default()
                }]),
                ..ServiceSpec::default()
            }),
            ..Service::default()
        };
        service.metadata.name = Some(NAME.into());
        service.metadata.labels = Some(label::labels([(label::MANAGED, "true")]));
        // Not a dry run: that would not look at the range.
        match self.services.create(&PostParams::default(), &service).await {
            Err(kube::Error::Api(status)) if status.code == 422 => Ok(range(&status.message)),
            Err(error) => Err(error),
            Ok(_) => {
                self.services.delete(NAME, &DeleteParams::default()).await?;
                Ok(None)
            }
        }
    }
}

/// The only range in a text.
fn range(text: &str) -> Option<RangeInclusive<u16>> {
    let words = text.split(|letter: char| !letter.is_ascii_digit() && letter != '-');
    let mut ranges = words.filter_map(|word| {
        let (first, last) = word.split_once('-')?;
        Some(first.parse().ok()?..=last.parse().ok()?)
    });
    let first = ranges.next()?;
    ranges.next().is_none().then_some(first)
}

#[cfg(test)]
mod tests {
    use super::range;

    #[test]
    fn a_range_is_found_in_what_the_server_says_if_it_is_the_only_one() {
        let said = r#"Service "test-node-port-range" is invalid: spec.ports[0].nodePort: Invalid value: 777777: provided port is not in the valid range. The range of valid ports is 30000-32767"#;
        assert_eq!(range(said), Some(30000..=32767));
        for other in ["", "no range", "1-2 and 3-4", "1-70000", "1-2-3"] {
            assert_eq!(range(other), None, "{other}");
        }
    }
}
