//! The kernel settings that forwarding through netfilter needs: found, set, and put back.
//!
//! Only the devices of the settings are touched. IPv4 forwards by the incoming device's own switch, IPv6 too from
//! 6.17 on (`force_forwarding`); before, it has one switch for everything. Strict reverse-path filtering drops replies that come back
//! by another device than the route to their source names, so it is made loose.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, ErrorKind},
    path::{Path, PathBuf},
};

use proxy_rules::Settings;

use super::script::Host;
use crate::data_path::{ApplyError, Unsupported};

const ROOT: &str = "/proc/sys";
const IPV6_ALL: &str = "net/ipv6/conf/all/forwarding";

/// What is to be set, and what was there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// path -> value.
    pub(crate) wanted: BTreeMap<String, &'static str>,
    /// What the script must know, with the values to put back.
    pub(crate) host: Host,
}

/// What these settings need; `saved` are the values from before an earlier apply.
pub(crate) fn plan(settings: &Settings, saved: &BTreeMap<String, String>) -> io::Result<Plan> {
    let mut plan = Plan::default();
    let interfaces = &settings.interfaces;
    for device in interfaces.tailnet.iter().chain(&interfaces.cluster) {
        let forwarding = format!("net/ipv4/conf/{device}/forwarding");
        if plan.need(saved, &forwarding, "1")? {
            plan.host.closed4.insert(device.clone());
        }
        let filter = format!("net/ipv4/conf/{device}/rp_filter");
        // The stricter of the device's and the general value applies; 2 is loose and the highest.
        let before = |path: &str| original(saved, path);
        if [before(&filter)?, before("net/ipv4/conf/all/rp_filter")?].iter().any(|v| v == "1") {
            plan.need(saved, &filter, "2")?;
        }
        if !Path::new(ROOT).join(format!("net/ipv6/conf/{device}")).exists() {
            // IPv6 is disabled.
            continue;
        }
        if original(saved, IPV6_ALL)? != "0" {
            continue;
        }
        let force = format!("net/ipv6/conf/{device}/force_forwarding");
        if Path::new(ROOT).join(&force).exists() {
            if plan.need(saved, &force, "1")? {
                plan.host.closed6.insert(device.clone());
            }
        } else if plan.need(saved, IPV6_ALL, "1")? {
            plan.host.ipv6_forwarding_was_off = true;
            // The general switch sets every device's; each gets its own value back.
            for device in fs::read_dir(Path::new(ROOT).join("net/ipv6/conf"))? {
                let device = device?.file_name().to_string_lossy().into_owned();
                let path = format!("net/ipv6/conf/{device}/forwarding");
                plan.host.sysctls.insert(path.clone(), original(saved, &path)?);
            }
        }
    }
    Ok(plan)
}

impl Plan {
    /// Plans a value unless it is there without our doing; tells whether it has to be set.
    fn need(
        &mut self,
        saved: &BTreeMap<String, String>,
        path: &str,
        value: &'static str,
    ) -> io::Result<bool> {
        let before = original(saved, path)?;
        if before == value {
            return Ok(false);
        }
        self.wanted.insert(path.to_owned(), value);
        self.host.sysctls.insert(path.to_owned(), before);
        Ok(true)
    }

    /// Whether everything that has to be set can be.
    pub(crate) fn check(&self) -> Result<(), Unsupported> {
        for (path, value) in &self.wanted {
            if read(path).is_ok_and(|now| now == *value) {
                continue;
            }
            fs::OpenOptions::new().write(true).open(absolute(path)).map_err(|source| {
                Unsupported::Kernel {
                    what: format!("to set {path} to {value}"),
                    source: source.into(),
                }
            })?;
        }
        Ok(())
    }

    /// Sets what is wanted.
    pub(crate) fn set(&self) -> Result<(), ApplyError> {
        for (path, value) in &self.wanted {
            write(path, value)
                .map_err(|source| ApplyError::step(format!("setting {path} to {value}"), source))?;
        }
        Ok(())
    }
}

/// Puts values back; devices that are gone have taken theirs with them.
pub(crate) fn restore(saved: &BTreeMap<String, String>) -> Result<(), ApplyError> {
    // The general IPv6 switch sets every device's: it comes first.
    let general = saved.iter().filter(|(path, _)| path.as_str() == IPV6_ALL);
    let others = saved.iter().filter(|(path, _)| path.as_str() != IPV6_ALL);
    for (path, value) in general.chain(others) {
        match write(path, value) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(ApplyError::step(format!("setting {path} back to {value}"), error));
            }
            _ => {}
        }
    }
    Ok(())
}

fn absolute(path: &str) -> PathBuf {
    Path::new(ROOT).join(path)
}

/// The value from before us.
fn original(saved: &BTreeMap<String, String>, path: &str) -> io::Result<String> {
    saved.get(path).map_or_else(|| read(path), |value| Ok(value.clone()))
}

fn read(path: &str) -> io::Result<String> {
    fs::read_to_string(absolute(path)).map(|value| value.trim().to_owned())
}

fn write(path: &str, value: &str) -> io::Result<()> {
    // Writing a value that is there already can still have effects (IPv6 forwarding walks every device).
    if read(path)? == value { Ok(()) } else { fs::write(absolute(path), value) }
}
