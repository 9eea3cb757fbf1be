//! Flows whose device is gone and was made anew with another index, as tailscaled's is whenever that starts.
//!
//! The programs correct a half's way out with packets of the other direction, while those are frequent. After an outage
//! they are not: TCP's repetitions are further and further apart, and each would be answered to a device that is no more.

use std::{collections::HashMap, io};

use proxy_ebpf_common::{FlowHalf, Hop};

use super::{device::Device, image::side, maps::Maps};

/// Leads the halves that leave by a device that is gone to the first device of its side, then forgets the device. Looks at
/// flows only if there is such a device. A side without a device keeps its flows as they are.
pub(super) fn follow(maps: &Maps, devices: &[Device]) -> io::Result<()> {
    let mut gone = Vec::new();
    maps.links.walk(|ifindex, link| {
        if devices.iter().all(|device| device.ifindex != *ifindex) {
            gone.push((*ifindex, link.side));
        }
    })?;
    let heir = |of: u8| devices.iter().find(|device| side(device.side) == of);
    let heirs: HashMap<u32, &Device> =
        gone.iter().filter_map(|(ifindex, side)| Some((*ifindex, heir(*side)?))).collect();
    if heirs.is_empty() {
        return Ok(());
    }
    let (mut led, mut failed) = (0_u64, None);
    maps.flows.walk(|key, half| {
        if !heirs.contains_key(&half.hop.ifindex) || failed.is_some() {
            return;
        }
        // Read again: a packet may have changed it since the batch was read.
        let replaced = maps.flows.get(key).and_then(|half| {
            let led =
                half.and_then(|half| heirs.get(&half.hop.ifindex).map(|device| lead(half, device)));
            led.map_or(Ok(false), |half| maps.flows.replace(key, &half))
        });
        match replaced {
            Ok(replaced) => led += u64::from(replaced),
            Err(error) => failed = Some(error),
        }
    })?;
    if let Some(error) = failed {
        return Err(error);
    }
    for ifindex in heirs.keys() {
        maps.links.remove(ifindex)?;
    }
    tracing::info!(halves = led, "flows follow a device that was made anew");
    Ok(())
}

/// The half, leaving by that device.
fn lead(half: FlowHalf, device: &Device) -> FlowHalf {
    let fresh_until = if device.l3 { Hop::NO_HEADER } else { 0 };
    let hop = Hop { ifindex: device.ifindex, fresh_until, ..Hop::default() };
    FlowHalf { hop, mtu: device.link.mtu, ..half }
}
