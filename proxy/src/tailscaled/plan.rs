//! Settings to a command line and an environment.

use std::{net::SocketAddr, path::PathBuf};

use secrecy::SecretString;

use super::{login::Login, mask::Masks};
use crate::pod::settings::{Arguments, Auth, ConfigFile, Settings, StateStore};

/// Variables that only we need, and that may hold secrets: whoever can read the processes' environment need not see them.
const KEPT: [&str; 5] =
    ["TS_AUTHKEY", "TS_AUTH_KEY", "TS_CLIENT_SECRET", "TS_ID_TOKEN", "TS_EXTRA_ARGS"];

/// How to run `tailscaled`, and `tailscale` beside it.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The programs.
    pub programs: Programs,
    /// Arguments of `tailscaled`.
    pub args: Arguments,
    /// Variables that it gets besides ours.
    pub env: Vec<(String, String)>,
    /// Its socket.
    pub socket: PathBuf,
    /// Where the `tailscale` program looks for the socket.
    pub socket_link: Option<PathBuf>,
    /// Arguments of `tailscale up` and `tailscale set`.
    pub login: Login,
    pub(super) masks: Masks,
}

/// The programs: a name is looked for in `PATH`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Programs {
    /// `tailscaled`.
    pub tailscaled: PathBuf,
    /// `tailscale`.
    pub tailscale: PathBuf,
}

impl Default for Programs {
    fn default() -> Self {
        Self { tailscaled: "tailscaled".into(), tailscale: "tailscale".into() }
    }
}

/// What the settings do not say.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The programs.
    pub programs: Programs,
    /// The file that was chosen from the settings' directory.
    pub config: Option<ConfigFile>,
    /// User-space networking whatever the settings say: there is no TUN device.
    pub without_tun: bool,
    /// Who translates and protects.
    pub netfilter: Netfilter,
    /// Where the SOCKS5 server listens, unless the settings say it.
    pub socks5: Option<SocketAddr>,
}

/// `tailscaled`'s own packet filter rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Netfilter {
    /// As it has them by itself.
    #[default]
    Unchanged,
    /// None: our data path does what they would do.
    Off,
}

/// Variables that are taken out of the environment.
pub(super) fn kept_variables() -> impl Iterator<Item = &'static str> {
    KEPT.into_iter()
}

impl Plan {
    /// From settings. With a key from the state Secret, set [`Settings::auth`] first.
    pub fn new(settings: &Settings, options: Options) -> Self {
        let daemon = &settings.tailscaled;
        let mut args = vec![format!("--socket={}", daemon.socket.display())];
        match &daemon.state {
            StateStore::KubeSecret { name, dir } => {
                args.push(format!("--state=kube:{name}"));
                args.push(format!("--statedir={}", dir.display()));
            }
            StateStore::Dir(dir) => args.push(format!("--statedir={}", dir.display())),
            StateStore::Memory => args.extend(["--state=mem:".into(), "--statedir=/tmp".into()]),
        }
        if daemon.user_space || options.without_tun {
            args.push("--tun=userspace-networking".to_owned());
        }
        let socks5 = options.socks5.map(|listen| listen.to_string());
        if let Some(listen) = daemon.socks5.as_ref().or(socks5.as_ref()) {
            args.push(format!("--socks5-server={listen}"));
        }
        if let Some(listen) = &daemon.http_proxy {
            args.push(format!("--outbound-http-proxy-listen={listen}"));
        }
        if let Some(config) = &options.config {
            args.push(format!("--config={}", config.path.display()));
        }
        // Operators before 1.80 put it among the other arguments.
        if let Some(listen) = daemon.debug.map(|listen| listen.to_string())
            && !daemon.extra_args.words().iter().any(|word| word.contains(&listen))
        {
            args.push(format!("--debug={listen}"));
        }
        args.extend(daemon.extra_args.words().iter().cloned());

        let mode = daemon
            .cert_share
            .map(|mode| ("TS_CERT_SHARE_MODE".to_owned(), mode.label().to_owned()));
        let link = settings.root.join("var/run/tailscale/tailscaled.sock");
        let login = Login::new(settings, options.netfilter);
        let secrets = secrets(&settings.auth).into_iter();
        let from_file = options.config.as_ref().and_then(|config| config.auth_key.as_ref());
        Self {
            masks: Masks::new(secrets.chain(from_file).chain(login.secrets())),
            programs: options.programs,
            args: Arguments::from(args),
            env: mode.into_iter().collect(),
            socket_link: (link != daemon.socket).then_some(link),
            socket: daemon.socket.clone(),
            login,
        }
    }
}

fn secrets(auth: &Auth) -> Vec<&SecretString> {
    match auth {
        Auth::None => Vec::new(),
        Auth::Key(key) => vec![key],
        Auth::Client(client) => client.secret.iter().chain(&client.id_token).collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::{ffi::OsString, path::Path};

    use super::*;

    fn plan(environment: &[(&str, &str)], options: Options) -> Plan {
        let lookup = |name: &str| {
            environment.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value))
        };
        Plan::new(&Settings::from_env(&lookup, Path::new("/")).unwrap(), options)
    }

    #[test]
    fn state_is_where_the_settings_say() {
        let (secret, dir) = (("TS_KUBE_SECRET", "x"), ("TS_STATE_DIR", "/s"));
        for (environment, state) in [
            (&[][..], "--state=mem: --statedir=/tmp"),
            (&[dir], "--statedir=/s"),
            (&[secret], "--state=kube:x --statedir=/tmp"),
            (&[secret, dir], "--state=kube:x --statedir=/s"),
        ] {
            let wanted =
                format!("--socket=/tmp/tailscaled.sock {state} --tun=userspace-networking");
            assert_eq!(plan(environment, Options::default()).args, Arguments::split(&wanted));
        }
    }

    #[test]
    fn everything_has_its_argument_in_upstreams_order() {
        let path = "/c/cap-106.hujson".into();
        let key = SecretString::from("0123456789".to_owned());
        let config = Some(ConfigFile { path, capability: 106, auth_key: Some(key) });
        let plan = plan(
            &[
                ("TS_USERSPACE", "false"),
                ("TS_SOCKET", "/run/t.sock"),
                ("TS_STATE_DIR", "/s"),
                ("TS_SOCKS5_SERVER", ":1055"),
                ("TS_OUTBOUND_HTTP_PROXY_LISTEN", ":1056"),
                ("TS_DEBUG_ADDR_PORT", "10.0.0.1:9001"),
                ("TS_TAILSCALED_EXTRA_ARGS", "--verbose=1 --port=41641"),
                ("TS_EXPERIMENTAL_CERT_SHARE", "1"),
                ("POD_NAME", "pg-0"),
            ],
            Options { config, without_tun: true, ..Options::default() },
        );
        let wanted = "--socket=/run/t.sock --statedir=/s --tun=userspace-networking --socks5-server=:1055 \
                      --outbound-http-proxy-listen=:1056 --config=/c/cap-106.hujson --debug=10.0.0.1:9001 --verbose=1 \
                      --port=41641";
        assert_eq!(plan.args, Arguments::split(wanted));
        assert_eq!(plan.env, [("TS_CERT_SHARE_MODE".to_owned(), "rw".to_owned())]);
        assert_eq!(plan.masks.apply("key 0123456789"), "key [REDACTED]");
    }

    #[test]
    fn the_settings_say_where_the_socks_server_is_before_we_do() {
        let socks5 = Some(SocketAddr::from(([127, 0, 0, 9], 1234)));
        for (environment, wanted) in
            [(&[][..], "127.0.0.9:1234"), (&[("TS_SOCKS5_SERVER", ":1055")], ":1055")]
        {
            let plan = plan(environment, Options { socks5, ..Options::default() });
            let socks =
                plan.args.words().iter().filter_map(|word| word.strip_prefix("--socks5-server="));
            assert_eq!(socks.collect::<Vec<_>>(), [wanted]);
        }
    }

    #[test]
    fn the_debug_address_is_not_given_twice() {
        let plan = plan(
            &[
                ("TS_DEBUG_ADDR_PORT", "10.0.0.1:9001"),
                ("TS_TAILSCALED_EXTRA_ARGS", "--debug=10.0.0.1:9001"),
            ],
            Options::default(),
        );
        let debug = plan.args.words().iter().filter(|word| word.starts_with("--debug"));
        assert_eq!(debug.count(), 1);
    }

    #[test]
    fn the_link_is_where_the_program_looks_unless_the_socket_is_there() {
        let usual = "/var/run/tailscale/tailscaled.sock";
        let elsewhere = plan(&[], Options::default());
        assert_eq!(elsewhere.socket_link.as_deref(), Some(Path::new(usual)));
        let there = plan(&[("TS_SOCKET", usual)], Options::default());
        assert_eq!(there.socket_link, None);
    }
}
