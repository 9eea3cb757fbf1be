//! Logs: to standard error, as text or JSON, at a level that can be changed while the process runs.

use tracing_subscriber::{
    EnvFilter, Registry, layer::SubscriberExt, reload, util::SubscriberInitExt,
};

/// Form of the log.
#[derive(Clone, Copy, Debug, Default, clap::ValueEnum)]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// One object a line.
    Json,
}

/// Changes the level.
#[derive(Clone, Debug)]
pub struct Level(reload::Handle<EnvFilter, Registry>);

/// Not a level.
#[derive(Debug, thiserror::Error)]
#[error(
    "log level `{level}`: use error, warn, info, debug, trace, or directives such as proxy=debug"
)]
pub struct BadLevel {
    level: String,
}

impl Level {
    /// From now on.
    pub fn set(&self, level: &str) -> Result<(), BadLevel> {
        let bad = || BadLevel { level: level.to_owned() };
        let filter = filter(level)?;
        self.0.reload(filter).map_err(|_| bad())
    }
}

/// Says of every failed request to the API server that it is an error; whoever made it says what that means.
const SILENCED: &str = "kube_client::client::builder=off";

fn filter(level: &str) -> Result<EnvFilter, BadLevel> {
    // A lone word that is no level would be taken for the name of a target, and silence everything else.
    let level_word = level.parse::<tracing::level_filters::LevelFilter>().is_ok();
    if !level_word && !level.contains('=') {
        return Err(BadLevel { level: level.to_owned() });
    }
    EnvFilter::try_new(format!("{level},{SILENCED}"))
        .map_err(|_| BadLevel { level: level.to_owned() })
}

/// Starts logging.
pub fn start(format: Format, level: &str) -> Result<Level, BadLevel> {
    let (filter, handle) = reload::Layer::new(filter(level)?);
    let registry = tracing_subscriber::registry().with(filter);
    let layer = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(false);
    let outcome = match format {
        Format::Text => registry.with(layer).try_init(),
        Format::Json => registry.with(layer.json().flatten_event(true)).try_init(),
    };
    if let Err(error) = outcome {
        // Only if something in this process logs already, which is then where messages go.
        tracing::debug!(%error, "logging is set up already");
    }
    Ok(Level(handle))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_cries_is_silenced_at_every_level_and_nothing_else_is() {
        for level in ["info", "debug", "proxy=trace,kube_client=debug"] {
            let filter = filter(level).unwrap().to_string();
            assert!(filter.contains(SILENCED), "{filter}");
            for directive in level.split(',') {
                assert!(filter.split(',').any(|word| word == directive), "{filter}");
            }
        }
        assert!(filter("nonsense").is_err());
    }
}
