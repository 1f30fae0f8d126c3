//! What another user of the Redis servers publishes to the inboxes of clients: grants that no server has made.

use std::time::Duration;

use tokio::time::sleep;

use super::FaultServers;
use crate::data::Outcome;

impl FaultServers {
    /// Publishes grants and hints to all inboxes, for all owners that can be seen, until this future ends.
    pub(crate) async fn forge_messages(&self, until: impl Future<Output = Outcome<()>>) -> Outcome<()> {
        let masters = self.masters().await?;
        let forge = async {
            loop {
                for master in &masters {
                    master.command(&["EVAL", FORGE, "0"]).await?;
                }
                sleep(AGAIN).await;
            }
        };
        tokio::select! {
            ended = until => ended,
            failed = forge => failed,
        }
    }
}

/// A grant with a proof that nobody has made, one in the form of earlier versions, and a hint to ask.
const FORGE: &str = "\
    local inboxes, owners = redis.call('PUBSUB', 'CHANNELS', 'polylock:inbox:*'), {} \
    for _, key in ipairs(redis.call('KEYS', '*')) do \
      local kind, lock, texts = redis.call('TYPE', key).ok, string.match(key, '{(.*)}') or key, {} \
      if kind == 'string' then texts = {redis.call('GET', key)} \
      elseif kind == 'list' then texts = redis.call('LRANGE', key, 0, 9) \
      elseif kind == 'zset' then texts = redis.call('ZRANGE', key, 0, 9) end \
      for _, text in ipairs(texts) do \
        for owner in string.gmatch(text, '%x+') do \
          if #owner == 32 then owners[owner] = lock end \
        end \
      end \
    end \
    local proof = string.rep('0', 40) \
    for _, inbox in ipairs(inboxes) do \
      for owner, lock in pairs(owners) do \
        redis.call('PUBLISH', inbox, 'granted ' .. owner .. ' ' .. proof .. ' ' .. lock) \
        redis.call('PUBLISH', inbox, 'granted ' .. owner .. ' ' .. lock) \
        redis.call('PUBLISH', inbox, 'passed ' .. owner .. ' 9000000000000000 ' .. proof .. ' ' .. lock) \
        redis.call('PUBLISH', inbox, 'passed ' .. owner .. ' 9000000000000000 ' .. lock) \
        redis.call('PUBLISH', inbox, 'next ' .. owner .. ' 0') \
      end \
    end";
const AGAIN: Duration = Duration::from_millis(10);
