# Makes the namespaces that it runs in those of a node, tells so with the file "ready", and keeps them in existence.
set -eu
dir=$1 node=$2 services=$3

# Mounts propagate between containerd, kubelet and containers, which share these namespaces. None reaches the machine.
mount --make-rshared /

# Containers, volumes and their logs are in directories of the node's own, under the names that everything expects.
for name in run var/lib var/log; do
	mkdir -p "$dir/node/$name"
	mount --bind "$dir/node/$name" "/$name"
done

# kubelet sets these for the whole machine, unless they are already as it wants them: let it see that they are.
while read -r name value; do
	mkdir -p "$(dirname "$dir/node/sys/$name")"
	echo "$value" >"$dir/node/sys/$name"
	mount --bind "$dir/node/sys/$name" "/proc/sys/$name"
done <<END
vm/overcommit_memory 1
vm/panic_on_oom 0
kernel/panic 10
kernel/panic_on_oops 1
kernel/keys/root_maxkeys 1000000
kernel/keys/root_maxbytes 25000000
END

# Not every kernel has dummy devices; a bridge without ports does as well. The route lets processes of the node connect to
# services: without any route there would be no packet whose destination could be translated.
ip link set lo up
ip link add node type bridge
ip address add "$node/32" dev node
ip link set node up
ip route add "$services" dev node
echo 1 >/proc/sys/net/ipv4/ip_forward

touch "$dir/node/ready"
exec sleep infinity
