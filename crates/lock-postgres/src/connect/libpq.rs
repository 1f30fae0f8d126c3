//! The options that libpq has beside those for TLS, by its names: providers put them into URLs.

use std::net::{AddrParseError, IpAddr};
use std::time::Duration;

use lock_core::Result;
use lock_core::url::OptionValue;
use tokio_postgres::Config;
use tokio_postgres::config::{ChannelBinding, LoadBalanceHosts};

use crate::connect::tls::Tls;
use crate::error::invalid;

/// How long a connection is idle before the kernel asks whether the other side still has it.
const KEEPALIVE_TIME: Duration = Duration::from_secs(15);

/// How long the other side may leave what was sent unacknowledged: a host that is gone.
const USER_TIMEOUT: Duration = Duration::from_secs(30);

/// The options that go to the driver. What libpq calls zero is the default.
#[derive(Clone, Debug, Default)]
pub(crate) struct Libpq {
    channel_binding: Option<ChannelBinding>,
    has_no_keepalives: bool,
    keepalives_idle: Option<Duration>,
    keepalives_interval: Option<Duration>,
    keepalives_count: Option<u32>,
    tcp_user_timeout: Option<Duration>,
    is_random: bool,
    /// The addresses of the hosts, which are not looked up then.
    host_addresses: Vec<IpAddr>,
    fallback_application_name: Option<String>,
}

impl Libpq {
    /// The names of the options.
    pub(crate) const OPTIONS: [&'static str; 12] = [
        "channel_binding",
        "keepalives",
        "keepalives_idle",
        "keepalives_interval",
        "keepalives_count",
        "tcp_user_timeout",
        "load_balance_hosts",
        "hostaddr",
        "fallback_application_name",
        "client_encoding",
        "gssencmode",
        "require_auth",
    ];

    /// Sets an option, and reports whether it is one of these.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](lock_core::ErrorKind::InvalidConfig) for a bad value, and for what cannot be kept.
    pub(crate) fn set(&mut self, key: &str, value: OptionValue<'_>) -> Result<bool> {
        match key {
            "channel_binding" => {
                self.channel_binding = Some(value.one_of([
                    ("disable", ChannelBinding::Disable),
                    ("prefer", ChannelBinding::Prefer),
                    ("require", ChannelBinding::Require),
                ])?);
            }
            "keepalives" => self.has_no_keepalives = value.one_of([("1", false), ("0", true)])?,
            "keepalives_idle" => self.keepalives_idle = seconds(value)?,
            "keepalives_interval" => self.keepalives_interval = seconds(value)?,
            "keepalives_count" => {
                let count = value.parse("give a number, such as 3")?;
                self.keepalives_count = Some(count).filter(|count| *count > 0);
            }
            "tcp_user_timeout" => {
                let millis: u32 = value.parse("give a number of milliseconds, such as 30000")?;
                self.tcp_user_timeout = positive(Duration::from_millis(millis.into()));
            }
            "load_balance_hosts" => self.is_random = value.one_of([("disable", false), ("random", true)])?,
            "hostaddr" => {
                let all: std::result::Result<_, _> = value.text().split(',').map(str::parse).collect();
                self.host_addresses = all.map_err(|error: AddrParseError| {
                    value.invalid("give an IP address for each host, separated by commas").caused_by(error)
                })?;
            }
            "fallback_application_name" => self.fallback_application_name = Some(value.text().to_owned()),
            "client_encoding" => {
                let name = value.text().to_ascii_lowercase();
                if !["auto", "utf8", "utf-8", "unicode"].contains(&name.as_str()) {
                    return Err(value.invalid("leave it out: names of locks are sent as UTF8"));
                }
            }
            "gssencmode" => {
                if !["disable", "prefer"].contains(&value.text()) {
                    return Err(value.invalid("there is no encryption by GSSAPI here: use sslmode=require"));
                }
            }
            "require_auth" => {
                return Err(value.invalid(
                    "leave it out: the server chooses how to log in; with sslmode=require and channel_binding=require only \
                     scram-sha-256 is possible, and no other server can pass on the login",
                ));
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Refuses what needs TLS without it.
    pub(crate) fn check(&self, tls: &Tls) -> Result<()> {
        if self.channel_binding == Some(ChannelBinding::Require) && !tls.is_required() {
            return Err(invalid("channel_binding=require needs TLS", "add sslmode=require"));
        }
        Ok(())
    }

    /// The address of each of so many hosts, if they are given.
    pub(crate) fn addresses(&self, hosts: usize) -> Result<&[IpAddr]> {
        match self.host_addresses.len() {
            addresses if addresses == 0 || addresses == hosts => Ok(&self.host_addresses),
            addresses => Err(invalid(
                format!("hostaddr= has {addresses} addresses for {hosts} hosts"),
                "give one for each host, or leave hostaddr= out",
            )),
        }
    }

    /// The hosts of a URL that names none but by their addresses.
    pub(crate) fn hosts(&self) -> Option<String> {
        let hosts = self.host_addresses.iter().map(|address| match address {
            IpAddr::V4(address) => address.to_string(),
            IpAddr::V6(address) => format!("[{address}]"),
        });
        let hosts = hosts.collect::<Vec<_>>().join(",");
        Some(hosts).filter(|hosts| !hosts.is_empty())
    }

    /// The name of the application, for a URL without one.
    pub(crate) fn application_name(&self) -> Option<&str> {
        self.fallback_application_name.as_deref()
    }

    /// Hands the options to the driver.
    pub(crate) fn apply(&self, target: &mut Config) {
        target
            .keepalives(!self.has_no_keepalives)
            .keepalives_idle(self.keepalives_idle.unwrap_or(KEEPALIVE_TIME));
        if let Some(interval) = self.keepalives_interval {
            target.keepalives_interval(interval);
        }
        if let Some(count) = self.keepalives_count {
            target.keepalives_retries(count);
        }
        target.tcp_user_timeout(self.tcp_user_timeout.unwrap_or(USER_TIMEOUT));
        if let Some(binding) = self.channel_binding {
            target.channel_binding(binding);
        }
        if self.is_random {
            target.load_balance_hosts(LoadBalanceHosts::Random);
        }
    }
}

/// A number of seconds, as libpq has it; none for zero.
pub(crate) fn seconds(value: OptionValue<'_>) -> Result<Option<Duration>> {
    let seconds: u32 = value.parse("give a number of seconds, such as 60")?;
    Ok(positive(Duration::from_secs(seconds.into())))
}

fn positive(duration: Duration) -> Option<Duration> {
    Some(duration).filter(|duration| !duration.is_zero())
}
