//! What a change of something else means for the objects of a controller.

use std::sync::Arc;

use futures::{Stream, StreamExt as _, stream};
use kube::runtime::reflector::{ObjectRef, Store};

use super::standalone::Standalone;
use crate::context::{Context, Trigger};

/// The objects that changes concern, from now on.
pub(super) fn parents<K: Standalone>(
    context: &Arc<Context>,
    store: Store<K>,
) -> impl Stream<Item = ObjectRef<K>> + Send + 'static {
    let changes = context.cache.changes();
    let context = Arc::clone(context);
    changes.flat_map(move |trigger| {
        let mut found: Vec<_> = match &trigger {
            Trigger::Child { kind, namespace, name } if kind == K::KIND.label() => {
                let object = ObjectRef::new(name);
                vec![if K::KIND.has_namespace() { object.within(namespace) } else { object }]
            }
            Trigger::Class(changed) => store
                .state_filter(|object| object.class(&context).as_ref() == Some(changed))
                .iter()
                .map(|object| ObjectRef::from(object.as_ref()))
                .collect(),
            // Of those who say so in `Standalone::touched`.
            _ => Vec::new(),
        };
        found.extend(K::touched(&context, &store, &trigger));
        stream::iter(found)
    })
}
