//! Variables to settings, and what cannot be combined.

use std::{
    net::{Ipv6Addr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use super::{
    Arguments, Auth, CertShare, Client, Daemon, Destination, Egress, Http, Kube, Lookup, Pod,
    Ports, Problem, Settings, SettingsErrors, StateStore, Targets, environment::Environment, go,
};

const BOOT_TIMEOUT: Duration = Duration::from_mins(1);
const LOCAL: SocketAddr = SocketAddr::new(std::net::IpAddr::V6(Ipv6Addr::UNSPECIFIED), 9002);
/// Where `tailscaled` puts files that are no state when the state is elsewhere.
const SCRATCH: &str = "/tmp";

pub(super) fn settings(lookup: &Lookup<'_>, root: &Path) -> Result<Settings, SettingsErrors> {
    let mut env = Environment::new(lookup);
    let auth = auth(&mut env);
    let (extra_args, said, accept_dns) = up_arguments(&mut env);
    let hostname = env.text("TS_HOSTNAME");
    let routes = env.networks("TS_ROUTES");
    let pod = pod(&mut env);
    let kube = kube(&mut env);
    let mut targets = targets(&mut env);
    let ports = Ports {
        ingress: env.ports("SLUICE_INGRESS_PORTS"),
        egress: env.ports("SLUICE_EGRESS_PORTS"),
    };
    let serve_config = env.path("TS_SERVE_CONFIG");
    let tailscaled = daemon(&mut env, kube.as_ref(), &pod);
    let http = http(&mut env, &pod, targets.egress_config_dir.is_some());
    let boot_timeout = env.duration("TS_BOOT_TIMEOUT", BOOT_TIMEOUT);
    let auto_advertise = env.flag("TS_EXPERIMENTAL_SERVICE_AUTO_ADVERTISEMENT", true);
    let auth_once = env.flag("TS_AUTH_ONCE", false);

    targets.cluster_via_ingress = env.flag(CLUSTER_VIA_INGRESS, false);
    if targets.cluster_via_ingress {
        if serve_config.is_none() {
            env.error(CLUSTER_VIA_INGRESS, Problem::Needs { other: "TS_SERVE_CONFIG" });
        }
        if pod.ips.is_empty() {
            env.error(CLUSTER_VIA_INGRESS, Problem::Needs { other: "POD_IP" });
        }
    }
    if tailscaled.config_dir.is_some() {
        // The file says all of this, and would silently win.
        let given = [
            ("TS_HOSTNAME", hostname.is_some()),
            ("TS_EXTRA_ARGS", !extra_args.is_empty() || said == Some("TS_EXTRA_ARGS")),
            ("TS_ROUTES", routes.is_some()),
            ("TS_ACCEPT_DNS", said == Some("TS_ACCEPT_DNS")),
        ];
        for (variable, given) in given {
            if given {
                env.error(variable, Problem::Conflict { other: CONFIG_DIR });
            }
        }
        for variable in credentials(&auth) {
            env.error(variable, Problem::Conflict { other: CONFIG_DIR });
        }
    }
    let groups = [
        ("TS_EGRESS_PROXIES_CONFIG_PATH", targets.egress_config_dir.is_some()),
        ("TS_INGRESS_PROXIES_CONFIG_PATH", targets.ingress_config_file.is_some()),
    ];
    for (variable, _) in groups.into_iter().filter(|(_, given)| *given) {
        match &kube {
            None => env.warn(variable, Problem::OutsideKubernetes),
            Some(Kube { secret: None, .. }) => env.warn(variable, Problem::WithoutSecret),
            Some(_) => {}
        }
    }

    if !env.errors.is_empty() {
        return Err(SettingsErrors(env.errors));
    }
    Ok(Settings {
        auth,
        auth_once,
        hostname,
        routes,
        accept_dns,
        extra_args,
        serve_config,
        targets,
        ports,
        tailscaled,
        pod,
        http,
        boot_timeout,
        auto_advertise,
        kube,
        root: root.to_owned(),
        warnings: env.warnings,
    })
}

const CONFIG_DIR: &str = "TS_EXPERIMENTAL_VERSIONED_CONFIG_DIR";
const CLUSTER_VIA_INGRESS: &str = "EXPERIMENTAL_ALLOW_PROXYING_CLUSTER_TRAFFIC_VIA_INGRESS";

fn auth(env: &mut Environment<'_>) -> Auth {
    let key = env.secret("TS_AUTHKEY").or_else(|| env.secret("TS_AUTH_KEY"));
    let client = Client {
        id: env.text("TS_CLIENT_ID"),
        secret: env.secret("TS_CLIENT_SECRET"),
        id_token: env.secret("TS_ID_TOKEN"),
        audience: env.text("TS_AUDIENCE"),
    };
    let (secret, token, audience) =
        (client.secret.is_some(), client.id_token.is_some(), client.audience.is_some());
    if client.id.is_none() {
        for (variable, given) in [("TS_ID_TOKEN", token), ("TS_AUDIENCE", audience)] {
            if given {
                env.error(variable, Problem::Needs { other: "TS_CLIENT_ID" });
            }
        }
    }
    for (variable, other, both) in [
        ("TS_ID_TOKEN", "TS_CLIENT_SECRET", token && secret),
        ("TS_ID_TOKEN", "TS_AUDIENCE", token && audience),
        ("TS_AUDIENCE", "TS_CLIENT_SECRET", audience && secret),
    ] {
        if both {
            env.error(variable, Problem::Conflict { other });
        }
    }
    let client = Auth::Client(client);
    let given = credentials(&client);
    match (key, given.is_empty()) {
        (None, true) => Auth::None,
        (None, false) => client,
        (Some(key), _) => {
            for variable in given {
                env.error(variable, Problem::Conflict { other: "TS_AUTHKEY" });
            }
            Auth::Key(key)
        }
    }
}

/// The variables that a way to log in comes from.
fn credentials(auth: &Auth) -> Vec<&'static str> {
    match auth {
        Auth::None => Vec::new(),
        Auth::Key(_) => vec!["TS_AUTHKEY"],
        Auth::Client(client) => [
            ("TS_CLIENT_ID", client.id.is_some()),
            ("TS_CLIENT_SECRET", client.secret.is_some()),
            ("TS_ID_TOKEN", client.id_token.is_some()),
            ("TS_AUDIENCE", client.audience.is_some()),
        ]
        .into_iter()
        .filter_map(|(variable, given)| given.then_some(variable))
        .collect(),
    }
}

/// `TS_EXTRA_ARGS` without `--accept-dns`, which variable says whether to accept DNS settings, and what it says.
fn up_arguments(env: &mut Environment<'_>) -> (Arguments, Option<&'static str>, bool) {
    const VARIABLE: &str = "TS_ACCEPT_DNS";
    const ARGUMENTS: &str = "TS_EXTRA_ARGS";
    let variable = env.text(VARIABLE).and_then(|value| {
        let accept = go::bool(&value);
        if accept.is_none() {
            env.warn(VARIABLE, Problem::NotABool { value, default: false });
        }
        accept
    });
    let mut arguments = Arguments::split(&env.text(ARGUMENTS).unwrap_or_default());
    let flag = arguments.take_accept_dns().unwrap_or_else(|value| {
        let value = format!("--accept-dns={value}");
        env.warn(ARGUMENTS, Problem::NotABool { value, default: variable.unwrap_or(false) });
        None
    });
    match (variable, flag) {
        (Some(value), Some(flag)) if value != flag => {
            env.warn(VARIABLE, Problem::Overridden { value, other: ARGUMENTS });
            (arguments, Some(ARGUMENTS), flag)
        }
        (Some(accept), _) => (arguments, Some(VARIABLE), accept),
        (None, Some(accept)) => (arguments, Some(ARGUMENTS), accept),
        (None, None) => (arguments, None, false),
    }
}

fn pod(env: &mut Environment<'_>) -> Pod {
    let ip = env.address("POD_IP");
    let ips = env.addresses("POD_IPS").unwrap_or_else(|| ip.into_iter().collect());
    Pod { name: env.text("POD_NAME"), uid: env.text("POD_UID"), ips }
}

fn kube(env: &mut Environment<'_>) -> Option<Kube> {
    env.text("KUBERNETES_SERVICE_HOST")?;
    let secret = env.set("TS_KUBE_SECRET").unwrap_or_else(|| "tailscale".to_owned());
    Some(Kube {
        secret: Some(secret).filter(|secret| !secret.is_empty()),
        api_server_from_env: env.flag("TS_KUBERNETES_READ_API_SERVER_ADDRESS_FROM_ENV", false),
    })
}

fn targets(env: &mut Environment<'_>) -> Targets {
    let ip = env.address("TS_DEST_IP");
    let name = env.text("TS_EXPERIMENTAL_DEST_DNS_NAME");
    let name = name.filter(|name| is_name(env, "TS_EXPERIMENTAL_DEST_DNS_NAME", name));
    if ip.is_some() && name.is_some() {
        let other = "TS_DEST_IP";
        env.error("TS_EXPERIMENTAL_DEST_DNS_NAME", Problem::Conflict { other });
    }
    let target = env.address("TS_TAILNET_TARGET_IP");
    let fqdn = env.text("TS_TAILNET_TARGET_FQDN");
    let fqdn = fqdn.filter(|name| is_name(env, "TS_TAILNET_TARGET_FQDN", name));
    if target.is_some() && fqdn.is_some() {
        let other = "TS_TAILNET_TARGET_IP";
        env.error("TS_TAILNET_TARGET_FQDN", Problem::Conflict { other });
    }
    let canonical = |name: String| format!("{}.", name.trim_end_matches('.').to_lowercase());
    Targets {
        ingress: ip.map(Destination::Ip).or(name.map(Destination::DnsName)),
        egress: target.map(Egress::Ip).or(fqdn.map(|name| Egress::Fqdn(canonical(name)))),
        cluster_via_ingress: false,
        egress_config_dir: env.path("TS_EGRESS_PROXIES_CONFIG_PATH"),
        ingress_config_file: env.path("TS_INGRESS_PROXIES_CONFIG_PATH"),
    }
}

/// A name by its lengths and its letters; underscores are used in the wild.
fn is_name(env: &mut Environment<'_>, variable: &'static str, name: &str) -> bool {
    let bare = name.strip_suffix('.').unwrap_or(name);
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    };
    let valid = bare.len() <= 253 && bare.split('.').all(label);
    if !valid {
        env.error(variable, Problem::NotAName { value: name.to_owned() });
    }
    valid
}

fn daemon(env: &mut Environment<'_>, kube: Option<&Kube>, pod: &Pod) -> Daemon {
    const OPTIMISED: &str = "TS_EXPERIMENTAL_ENABLE_FORWARDING_OPTIMIZATIONS";
    let user_space = env.flag("TS_USERSPACE", true);
    let udp_gro_forwarding = env.flag(OPTIMISED, false);
    if udp_gro_forwarding && user_space {
        env.error(OPTIMISED, Problem::NeedsTun);
    }
    let secret = match kube {
        Some(kube) => kube.secret.clone(),
        None => env.text("TS_KUBE_SECRET"),
    };
    let state = match (secret, env.path("TS_STATE_DIR")) {
        (Some(name), dir) => {
            StateStore::KubeSecret { name, dir: dir.unwrap_or_else(|| PathBuf::from(SCRATCH)) }
        }
        (None, Some(dir)) => StateStore::Dir(dir),
        (None, None) => StateStore::Memory,
    };
    let first = pod.name.as_deref().is_some_and(|name| name.ends_with("-0"));
    let cert_share = env.flag("TS_EXPERIMENTAL_CERT_SHARE", false).then_some(if first {
        CertShare::ReadWrite
    } else {
        CertShare::ReadOnly
    });
    Daemon {
        extra_args: Arguments::split(&env.text("TS_TAILSCALED_EXTRA_ARGS").unwrap_or_default()),
        user_space,
        state,
        socket: env.path("TS_SOCKET").unwrap_or_else(|| PathBuf::from("/tmp/tailscaled.sock")),
        socks5: env.text("TS_SOCKS5_SERVER"),
        http_proxy: env.text("TS_OUTBOUND_HTTP_PROXY_LISTEN"),
        debug: env.listener("TS_DEBUG_ADDR_PORT"),
        config_dir: env.path(CONFIG_DIR),
        cert_share,
        udp_gro_forwarding,
    }
}

fn http(env: &mut Environment<'_>, pod: &Pod, egress_group: bool) -> Http {
    const LOCAL_VARIABLE: &str = "TS_LOCAL_ADDR_PORT";
    const HEALTH_LISTENER: &str = "TS_HEALTHCHECK_ADDR_PORT";
    let metrics = env.flag("TS_ENABLE_METRICS", false);
    let health = env.flag("TS_ENABLE_HEALTH_CHECK", false);
    let local = env.text(LOCAL_VARIABLE).and_then(|value| {
        // `$(POD_IP):9002` in a manifest has no brackets around an address of IPv6.
        let bracketed = pod.ipv6().and_then(|ip| {
            let port = value.strip_prefix(&ip.to_string())?;
            Some(format!("[{ip}]{port}"))
        });
        let parsed = bracketed.as_ref().unwrap_or(&value).parse();
        let problem = || Problem::NotAnAddressAndPort { value: value.clone() };
        match parsed {
            Ok(address) => return Some(address),
            Err(_) if metrics || health || egress_group => env.error(LOCAL_VARIABLE, problem()),
            Err(_) => env.warn(LOCAL_VARIABLE, problem()),
        }
        None
    });
    let health_listener = env.listener(HEALTH_LISTENER);
    if health_listener.is_some() {
        let instead = "TS_ENABLE_HEALTH_CHECK";
        env.warn(HEALTH_LISTENER, Problem::Deprecated { instead });
        if health {
            env.error(HEALTH_LISTENER, Problem::Conflict { other: instead });
        }
    }
    Http { local: local.unwrap_or(LOCAL), metrics, health, health_listener }
}
