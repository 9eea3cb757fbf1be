//! What a change of a child or a ProxyClass means for the objects of a controller.

use futures::{Stream, StreamExt as _, stream};
use kube::{
    Resource,
    runtime::reflector::{Lookup, ObjectRef, Store},
};

use crate::{
    context::{Context, Trigger},
    label::ParentKind,
};

/// The objects of this kind that changes concern from now on. `class` tells the ProxyClass that an object has.
pub(super) fn parents<K>(
    context: &Context,
    store: Store<K>,
    kind: ParentKind,
    class: impl Fn(&K) -> Option<String> + Send + 'static,
) -> impl Stream<Item = ObjectRef<K>> + Send + 'static
where
    K: Resource<DynamicType = ()> + Lookup<DynamicType = ()> + Clone + Send + Sync + 'static,
{
    let has_namespace = kind != ParentKind::Connector;
    context.cache.changes().flat_map(move |trigger| {
        let found = match trigger {
            Trigger::Child { kind: label, namespace, name } if label == kind.label() => {
                let object = ObjectRef::new(&name);
                vec![if has_namespace { object.within(&namespace) } else { object }]
            }
            Trigger::Child { .. } => Vec::new(),
            Trigger::Class(changed) => store
                .state_filter(|object| class(object).as_ref() == Some(&changed))
                .iter()
                .map(|object| ObjectRef::from(object.as_ref()))
                .collect(),
        };
        stream::iter(found)
    })
}
