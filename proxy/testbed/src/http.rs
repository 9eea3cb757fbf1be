//! HTTP/1.1 as far as tests need it: one request on a fresh connection.

use std::io::{Read, Write};

use anyhow::{Context as _, Result, ensure};

/// Sends a request and reads the answer to its end; anything but a 2xx answer is an error. `host` is the header's.
pub fn request(
    mut stream: impl Read + Write,
    host: &str,
    method: &str,
    path: &str,
    body: &str,
) -> Result<String> {
    // In one piece: a server that needs no body may answer, and close, before it has come.
    let asked = format!(
        "{method} {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(asked.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("answer without a body")?;
    let status = head.split(' ').nth(1).unwrap_or_default();
    ensure!(status.starts_with('2'), "{method} {path}: {status}: {body}");
    Ok(unchunk(head, body))
}

/// The body of a chunked answer.
fn unchunk(head: &str, body: &str) -> String {
    if !head.to_ascii_lowercase().contains("transfer-encoding: chunked") {
        return body.to_owned();
    }
    let (mut rest, mut whole) = (body, String::new());
    while let Some((size, after)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size.trim(), 16).unwrap_or(0);
        match after.get(..size) {
            Some(chunk) if size > 0 => whole += chunk,
            _ => break,
        }
        rest = after.get(size + 2..).unwrap_or_default();
    }
    whole
}
