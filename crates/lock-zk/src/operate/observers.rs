//! The servers of an ensemble as its configuration node names them: which of them are observers.

/// The servers of an ensemble.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Members(Vec<Member>);

#[derive(Debug, PartialEq, Eq)]
struct Member {
    number: i64,
    votes: bool,
    /// The host names of its machine.
    hosts: Vec<String>,
    /// The client port. Unknown where each server has it in a configuration file of its own.
    port: Option<u16>,
}

impl Members {
    pub(crate) fn parse(config: &[u8]) -> Self {
        Self(String::from_utf8_lossy(config).lines().filter_map(Member::parse).collect())
    }

    pub(crate) fn have_observers(&self) -> bool {
        self.0.iter().any(|member| !member.votes)
    }

    /// Whether the server of this number is an observer.
    pub(crate) fn observe(&self, number: i64) -> bool {
        self.0.iter().any(|member| member.number == number && !member.votes)
    }

    /// Whether this host (`host[:port]`) can only be an observer.
    pub(crate) fn are_observers_at(&self, host: &str) -> bool {
        let mut here = self.0.iter().filter(|member| member.may_be_at(host)).peekable();
        here.peek().is_some() && here.all(|member| !member.votes)
    }
}

impl Member {
    /// Reads `server.5=host:port:port[:role][|host:port:port...][;[host:]port]`.
    fn parse(line: &str) -> Option<Self> {
        let (number, server) = line.strip_prefix("server.")?.split_once('=')?;
        let (addresses, client) = server.split_once(';').unwrap_or((server, ""));
        let (client_host, port) = client.rsplit_once(':').unwrap_or(("", client));
        let any = ["", "0.0.0.0", "[::]", "[0:0:0:0:0:0:0:0]"].contains(&client_host);
        let quorum_hosts = addresses.split('|').map(host_of);
        Some(Self {
            number: number.parse().ok()?,
            votes: !addresses.ends_with(":observer"),
            hosts: quorum_hosts.chain((!any).then_some(client_host)).map(str::to_lowercase).collect(),
            port: port.parse().ok(),
        })
    }

    fn may_be_at(&self, host: &str) -> bool {
        let name = host_of(host);
        let port = host[name.len()..].strip_prefix(':').map_or(Ok(DEFAULT_PORT), str::parse);
        let same_port = self.port.is_none_or(|own| port == Ok(own));
        same_port && self.hosts.contains(&name.to_lowercase())
    }
}

/// The part before the first port. An IPv6 address is in brackets.
fn host_of(address: &str) -> &str {
    let end = address.find(']').map_or_else(|| address.find(':'), |at| Some(at + 1));
    &address[..end.unwrap_or(address.len())]
}
const DEFAULT_PORT: u16 = 2181;

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &[u8] = b"server.1=a:2888:3888:participant;0.0.0.0:2181\nserver.2=a:2889:3889;2182\n\
        server.3=b:2888:3888:observer;0.0.0.0:2181\nserver.14=c:1:2|[::2]:1:2:observer;d:2183\nversion=0\nserver.x=:observer";

    #[test]
    fn observers_are_told_from_voters() {
        let members = Members::parse(CONFIG);
        let observers = (0..20).filter(|number| members.observe(*number));
        assert_eq!(observers.collect::<Vec<_>>(), [3, 14]);
        assert!(members.have_observers() && !Members::parse(b"server.1=a:1:2;3").have_observers());
        assert_eq!(Members::parse(b""), Members(Vec::new()));
    }

    #[test]
    fn observers_are_known_by_their_hosts() {
        let members = Members::parse(CONFIG);
        for host in ["b:2181", "b", "B", "c:2183", "[::2]:2183", "d:2183"] {
            assert!(members.are_observers_at(host), "{host}");
        }
        for host in ["a:2181", "a:2182", "a", "b:2182", "c", "d", "0.0.0.0:2181", "elsewhere"] {
            assert!(!members.are_observers_at(host), "{host}");
        }
        // Without the ports, an observer is recognized only if it has a machine of its own.
        let members = Members::parse(b"server.1=a:1:2\nserver.2=a:3:4:observer\nserver.3=b:1:2:observer");
        assert!(members.are_observers_at("b:2181") && !members.are_observers_at("a:2181"));
    }
}
