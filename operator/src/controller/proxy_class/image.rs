//! What an image may be called. <https://github.com/distribution/reference>
//!
//! Crates that read such names (oci-spec, oci-client) bring dozens of others with them; only whether it is one is asked here.

/// Of the name, without tag and digest.
const NAME_LIMIT: usize = 255;
/// Of the tag.
const TAG_LIMIT: usize = 128;

/// Whether this is the name of an image, with registry, tag and digest or without.
pub(super) fn is_image(text: &str) -> bool {
    // It would be taken for the ID of an image.
    let is_hex = |letter: u8| letter.is_ascii_digit() || (b'a'..=b'f').contains(&letter);
    if text.len() == 64 && text.bytes().all(is_hex) {
        return false;
    }
    let (text, digest) = match text.split_once('@') {
        Some((text, digest)) => (text, Some(digest)),
        None => (text, None),
    };
    // A `:` before the last `/` is that of a registry's port.
    let (name, tag) = match text.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => (name, Some(tag)),
        _ => (text, None),
    };
    name.len() <= NAME_LIMIT
        && is_name(name)
        && tag.is_none_or(is_tag)
        && digest.is_none_or(is_digest)
}

fn is_name(name: &str) -> bool {
    let path = match name.split_once('/') {
        Some((host, path)) if is_host_like(host) => {
            if !is_host(host) {
                return false;
            }
            path
        }
        _ => name,
    };
    path.split('/').all(is_component)
}

/// Whether what is before the first `/` is a registry and not a part of a path.
fn is_host_like(text: &str) -> bool {
    text.contains(['.', ':'])
        || text == "localhost"
        || text.bytes().any(|letter| letter.is_ascii_uppercase())
}

fn is_host(text: &str) -> bool {
    let (host, port) = match text.rsplit_once(':') {
        // Not that of an IPv6 address.
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (text, None),
    };
    let is_port = |port: &str| !port.is_empty() && port.bytes().all(|digit| digit.is_ascii_digit());
    let v6 = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let is_address = v6.is_some_and(|v6| v6.parse::<std::net::Ipv6Addr>().is_ok());
    let inside = |letter: u8| letter.is_ascii_alphanumeric() || letter == b'-';
    let is_label = |label: &str| {
        !label.is_empty()
            && label.bytes().all(inside)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    port.is_none_or(is_port) && (is_address || host.split('.').all(is_label))
}

/// Small letters and digits, with one `.`, one or two `_`, or any number of `-` between them.
fn is_component(text: &str) -> bool {
    let is_word = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit();
    let ends = text.starts_with(is_word) && text.ends_with(is_word);
    let mut between = text.split(is_word).filter(|part| !part.is_empty());
    ends && between
        .all(|part| matches!(part, "." | "_" | "__") || part.bytes().all(|letter| letter == b'-'))
}

fn is_tag(tag: &str) -> bool {
    let is_word = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let inside = |letter: char| is_word(letter) || letter == '.' || letter == '-';
    tag.len() <= TAG_LIMIT && tag.starts_with(is_word) && tag.chars().all(inside)
}

/// An algorithm that is used for images, and as many hexadecimal digits as it makes.
fn is_digest(digest: &str) -> bool {
    let Some((algorithm, value)) = digest.split_once(':') else { return false };
    let is_hex =
        value.bytes().all(|letter| letter.is_ascii_hexdigit() && !letter.is_ascii_uppercase());
    let length = match algorithm {
        "sha256" => value.len() == 64,
        "sha384" => value.len() == 96,
        "sha512" => value.len() == 128,
        _ => false,
    };
    is_hex && length
}

#[cfg(test)]
mod tests {
    use super::is_image;

    #[test]
    fn images_are_told_from_what_is_none() {
        let digest = format!("sha256:{}", "a".repeat(64));
        for good in [
            "proxy",
            "proxy:2",
            "tailscale/tailscale:v1.102.5",
            "ghcr.io/a/b__c/d-e--f.g:latest",
            "localhost/a",
            "localhost:5000/a:1",
            "[2001:db8::1]:5000/a",
            "Registry/a",
            "a:1@sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
            &format!("reg.example/a@{digest}"),
            &format!("a:1@{digest}"),
            &format!("{}:1", "a".repeat(64)),
            &format!("a:{}", "t".repeat(128)),
        ] {
            assert!(is_image(good), "{good}");
        }
        for bad in [
            "",
            "Proxy",
            "a b",
            "a:",
            "a:-1",
            "a@sha256:12",
            "a:1@sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
            "a@x",
            "a//b",
            "/a",
            "a/",
            "-a",
            "a..b",
            "a___b",
            "a/B",
            "reg.example:port/a",
            "reg..example/a",
            "https://reg.example/a",
            &"a".repeat(64),
            &format!("a@md5:{}", "a".repeat(32)),
            &"x".repeat(256),
            &format!("a:{}", "t".repeat(129)),
        ] {
            assert!(!is_image(bad), "{bad}");
        }
    }
}
