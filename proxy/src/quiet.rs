//! Whether anything is still carried.

use std::time::Duration;

use tokio::time;

use crate::engine::Engine;

/// How many readings without a packet make a proxy quiet.
const READINGS: u32 = 3;

/// Returns when no packet comes any more; when no flow is left either, sooner. (The live flows are as of the last ageing.)
pub async fn quiet(engine: &Engine) {
    let mut last = None;
    let mut still = 0;
    let mut ticks = time::interval(Duration::from_secs(1));
    loop {
        ticks.tick().await;
        let Ok(Ok(snapshot)) = engine.counters().await else { continue };
        let packets: u64 = snapshot
            .series
            .values()
            .map(|count| count.original_packets.wrapping_add(count.reply_packets))
            .fold(0, u64::wrapping_add);
        still = if last == Some(packets) { still + 1 } else { 0 };
        last = Some(packets);
        if still >= READINGS || (still > 0 && snapshot.live_flows == Some(0)) {
            return;
        }
    }
}
