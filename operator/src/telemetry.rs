//! Logs, to standard error.

use tracing_subscriber::{EnvFilter, layer::SubscriberExt as _, util::SubscriberInitExt as _};

/// As upstream's operator has it: how much, and in which form.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, clap::ValueEnum)]
pub enum Logging {
    /// One JSON object a line: what changed, and what somebody should look at.
    #[default]
    Info,
    /// The same with what was decided and not done.
    Debug,
    /// For people: text, with what was decided and not done.
    Dev,
}

impl From<&str> for Logging {
    /// A word that is none of them is as good as none, as upstream has it.
    fn from(word: &str) -> Self {
        match word {
            "debug" => Self::Debug,
            "dev" => Self::Dev,
            _ => Self::Info,
        }
    }
}

/// Starts logging. `RUST_LOG` says more finely what is told.
pub fn start(logging: Logging) {
    let level = if logging == Logging::Info { "info" } else { "info,operator=debug" };
    // kube says of every failed request that it is an error; whoever made it says what that means.
    let default = format!("{level},kube_client::client::builder=off");
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default));
    let layer = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(false);
    let registry = tracing_subscriber::registry().with(filter);
    let outcome = match logging {
        Logging::Dev => registry.with(layer).try_init(),
        Logging::Info | Logging::Debug => {
            registry.with(layer.json().flatten_event(true)).try_init()
        }
    };
    if let Err(error) = outcome {
        // Only if something in this process logs already, which is then where messages go.
        tracing::debug!(%error, "logging is set up already");
    }
}
