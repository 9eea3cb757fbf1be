//! Arguments that a user gives for another program.

use std::fmt;

use super::go;

/// Words of a command line. Values of flags that carry secrets are not in the `Debug` output.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Arguments(Vec<String>);

/// Flags whose value is a secret, as the `tailscale` program has them.
const SECRET_FLAGS: [&str; 4] = ["auth-key", "authkey", "client-secret", "id-token"];

impl Arguments {
    /// Splits at white space; there is no quoting, as upstream has none.
    pub fn split(text: &str) -> Self {
        Self(text.split_whitespace().map(str::to_owned).collect())
    }

    /// The words.
    pub fn words(&self) -> &[String] {
        &self.0
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes `--accept-dns` out. `Err` holds what was said instead of a truth value; the flag then stays for the program
    /// to judge.
    pub(super) fn take_accept_dns(&mut self) -> Result<Option<bool>, String> {
        const FLAG: &str = "--accept-dns";
        let found = self.0.iter().enumerate().find_map(|(index, word)| {
            let value = word.strip_prefix(FLAG)?;
            let value = if value.is_empty() { "true" } else { value.strip_prefix('=')? };
            Some((index, value.to_owned()))
        });
        let Some((index, value)) = found else { return Ok(None) };
        let Some(accept) = go::bool(&value) else { return Err(value) };
        self.0.remove(index);
        Ok(Some(accept))
    }
}

impl From<Vec<String>> for Arguments {
    fn from(words: Vec<String>) -> Self {
        Self(words)
    }
}

impl fmt::Debug for Arguments {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut list = formatter.debug_list();
        let mut value_follows = false;
        for word in &self.0 {
            let flag = word.trim_start_matches('-');
            let (name, value) = flag.split_once('=').unwrap_or((flag, ""));
            let secret = flag.len() < word.len() && SECRET_FLAGS.contains(&name);
            if value_follows {
                list.entry(&"[REDACTED]");
            } else if secret && !value.is_empty() {
                list.entry(&format!("--{name}=[REDACTED]"));
            } else {
                list.entry(word);
            }
            value_follows = secret && !flag.contains('=');
        }
        list.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accept_dns_is_taken_out_where_it_is_understood() {
        let cases = [
            ("--ssh --accept-dns=true --x", Ok(Some(true)), "--ssh --x"),
            ("--accept-dns", Ok(Some(true)), ""),
            ("--accept-dns=0", Ok(Some(false)), ""),
            ("--accept-dns=maybe", Err("maybe".to_owned()), "--accept-dns=maybe"),
            ("--accept-dnsx --ssh", Ok(None), "--accept-dnsx --ssh"),
            ("", Ok(None), ""),
        ];
        for (text, taken, left) in cases {
            let mut arguments = Arguments::split(text);
            assert_eq!(arguments.take_accept_dns(), taken, "{text}");
            assert_eq!(arguments, Arguments::split(left), "{text}");
        }
    }

    #[test]
    fn no_secret_is_shown() {
        let text =
            "--authkey=tskey-a --auth-key tskey-b -client-secret=c --id-token d --hostname=web";
        let shown = format!("{:?}", Arguments::split(text));
        assert_eq!(
            shown,
            "[\"--authkey=[REDACTED]\", \"--auth-key\", \"[REDACTED]\", \"--client-secret=[REDACTED]\", \
             \"--id-token\", \"[REDACTED]\", \"--hostname=web\"]"
        );
    }
}
