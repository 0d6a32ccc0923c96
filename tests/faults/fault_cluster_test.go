package faults_test

import (
	"context"
	"net"
	"path/filepath"
	"syscall"
	"time"
)

var clusterFaults = []fault{
	{kind: "API server frozen for 1 s", shortest: time.Second, longest: time.Second, inject: freezeServer("kube-apiserver")},
	{kind: "API server frozen for 30 s", shortest: 30 * time.Second, longest: 30 * time.Second, inject: freezeServer("kube-apiserver")},
	{kind: "API server frozen for 300 s", shortest: outage, longest: outage, rare: true, inject: freezeServer("kube-apiserver")},
	{kind: "API server away for 300 s", rare: true, inject: stopAPIServer},
	{kind: "API server restarted", inject: restartAPIServer},
	{kind: "connections to the API server cut", short: true, inject: cutConnections},
	{kind: "no way to the API server", shortest: time.Second, longest: 5 * time.Second, inject: noWay},
	{kind: "etcd restarted", inject: restartEtcd},
}

func freezeServer(name string) func(context.Context, *target) (func(context.Context) error, error) {
	return func(_ context.Context, on *target) (func(context.Context) error, error) {
		if err := signalServer(on.system.ControlPlane, name, syscall.SIGSTOP); err != nil {
			return nil, err
		}
		return func(context.Context) error { return signalServer(on.system.ControlPlane, name, syscall.SIGCONT) }, nil
	}
}

// outage is longer than every lease, lock and timeout of a request.
const outage = 300 * time.Second

func stopAPIServer(ctx context.Context, on *target) (func(context.Context) error, error) {
	return nil, on.restartAPIServer(ctx, outage)
}

func restartAPIServer(ctx context.Context, on *target) (func(context.Context) error, error) {
	return nil, on.restartAPIServer(ctx, time.Duration(on.random.IntN(1000))*time.Millisecond)
}

func cutConnections(_ context.Context, on *target) (func(context.Context) error, error) {
	on.api.cut(false)
	return nil, nil
}

func noWay(_ context.Context, on *target) (func(context.Context) error, error) {
	on.api.cut(true)
	return func(context.Context) error {
		on.api.cut(false)
		return nil
	}, nil
}

func restartEtcd(ctx context.Context, on *target) (func(context.Context) error, error) {
	cp := on.system.ControlPlane
	ready := func(ctx context.Context) error {
		connection, err := (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(cp.Dir, "etcd", "client:0"))
		if err != nil {
			return err
		}
		return connection.Close()
	}
	return nil, restartServer(ctx, cp, "etcd", ready, nil, nil)
}
