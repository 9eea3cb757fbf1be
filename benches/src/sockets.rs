//! What the benchmarks' clients and servers say over TCP. The first byte of a connection tells the server its kind.

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpStream},
    time::{Duration, Instant},
};

use anyhow::Result;

use crate::stats;

/// The client sends until it has had enough; the server then tells how many bytes came.
pub const STREAM: u8 = b'S';
/// The server returns each byte.
pub const ECHO: u8 = b'R';
/// The server returns this byte; the client closes.
pub const ONCE: u8 = b'C';
/// What a client waits for an answer before the measurement fails.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// What a stream has carried.
#[derive(Clone, Copy, Debug)]
pub struct Carried {
    /// As the receiver counted.
    pub bytes: u64,
    /// Until the receiver had told.
    pub seconds: f64,
}

impl Carried {
    /// Its rate, Gbit/s.
    pub fn gigabits(self) -> f64 {
        self.bytes as f64 * 8e-9 / self.seconds
    }
}

/// Sends for so long.
pub fn stream(connection: &mut TcpStream, time: Duration) -> Result<Carried> {
    let data = vec![0; 1 << 17];
    connection.write_all(&[STREAM])?;
    let start = Instant::now();
    while start.elapsed() < time {
        connection.write_all(&data)?;
    }
    connection.shutdown(Shutdown::Write)?;
    let mut total = [0; 8];
    connection.read_exact(&mut total)?;
    Ok(Carried { bytes: u64::from_be_bytes(total), seconds: start.elapsed().as_secs_f64() })
}

/// One byte there and back, again and again: [`rate_and_times`] of it.
pub fn transactions(connection: &mut TcpStream, time: Duration) -> Result<Vec<f64>> {
    connection.write_all(&[ECHO])?;
    let mut times = Vec::new();
    let start = Instant::now();
    let mut last = start;
    while last - start < time {
        connection.write_all(&[ECHO])?;
        connection.read_exact(&mut [0])?;
        let now = Instant::now();
        times.push((now - last).as_secs_f64() * 1e6);
        last = now;
    }
    Ok(rate_and_times(&times, last - start))
}

/// Rate, and the times that 50, 99 and 99.9 of 100 stay under, in microseconds.
pub fn rate_and_times(times: &[f64], took: Duration) -> Vec<f64> {
    let mut values = vec![times.len() as f64 / took.as_secs_f64()];
    values.extend([0.5, 0.99, 0.999].into_iter().filter_map(|q| stats::quantile(times, q)));
    values
}

/// Serves a connection whose first byte was [`ECHO`].
pub fn echo(mut connection: TcpStream) {
    connection.set_nodelay(true).ok();
    let mut byte = [0];
    while connection.read_exact(&mut byte).is_ok() && connection.write_all(&byte).is_ok() {}
}

/// Serves a connection whose first byte was [`STREAM`].
pub fn swallow(mut connection: TcpStream) {
    let mut data = vec![0; 1 << 18];
    let mut total = 0_u64;
    while let Ok(length) = connection.read(&mut data) {
        if length == 0 {
            break;
        }
        total += length as u64;
    }
    connection.write_all(&total.to_be_bytes()).ok();
}
