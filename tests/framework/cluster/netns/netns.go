// Package netns opens sockets in a network namespace other than the program's own. The program stays in its own namespace, and can reach
// servers, or serve, in the other one.
package netns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// Namespace is a network namespace. It exists at least until it is closed.
type Namespace struct {
	file *os.File
	// resolver asks the name server in the namespace; nil if there is none.
	resolver *net.Resolver
}

// Open opens the namespace of the given file, for example /proc/PID/ns/net.
func Open(path string) (*Namespace, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open the network namespace: %w", err)
	}
	return &Namespace{file: file}, nil
}

// Close closes the namespace. Sockets that were opened in it stay open.
func (n *Namespace) Close() error { return n.file.Close() }

// ResolveWith makes Dial resolve host names with the name server at the address.
func (n *Namespace) ResolveWith(server string) {
	n.resolver = &net.Resolver{
		PreferGo: true,
		Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return n.Dial(ctx, network, server)
		},
	}
}

// Listen opens a listener in the namespace. The host of the address is an IP address of the namespace, or empty.
func (n *Namespace) Listen(network, address string) (listener net.Listener, err error) {
	err = n.do(func() error {
		listener, err = net.Listen(network, address)
		return err
	})
	return listener, err
}

// Dial connects to an address from within the namespace.
func (n *Namespace) Dial(ctx context.Context, network, address string) (connection net.Conn, err error) {
	if address, err = n.resolve(ctx, address); err != nil {
		return nil, err
	}
	// With one IP address the dialer opens the socket in the goroutine that calls it, so the socket is in the namespace.
	err = n.do(func() error {
		connection, err = (&net.Dialer{}).DialContext(ctx, network, address)
		return err
	})
	return connection, err
}

// resolve returns the address with the host name replaced by an IP address.
func (n *Namespace) resolve(ctx context.Context, address string) (string, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return "", err
	}
	if net.ParseIP(host) != nil {
		return address, nil
	}
	if n.resolver == nil {
		return "", fmt.Errorf("no name server to ask for %s", host)
	}
	found, err := n.resolver.LookupIP(ctx, "ip4", host)
	if err != nil {
		return "", err
	}
	return net.JoinHostPort(found[0].String(), port), nil
}

// do runs the function on a thread that is in the namespace.
func (n *Namespace) do(run func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		own, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			runtime.UnlockOSThread()
			done <- fmt.Errorf("open the own network namespace: %w", err)
			return
		}
		defer func() { _ = own.Close() }()
		if err := unix.Setns(int(n.file.Fd()), unix.CLONE_NEWNET); err != nil {
			runtime.UnlockOSThread()
			done <- fmt.Errorf("enter the network namespace: %w", err)
			return
		}
		result := run()
		if err := unix.Setns(int(own.Fd()), unix.CLONE_NEWNET); err != nil {
			// The thread stays locked, so it ends with the goroutine and nothing else ever runs on it.
			done <- errors.Join(result, fmt.Errorf("leave the network namespace: %w", err))
			return
		}
		runtime.UnlockOSThread()
		done <- result
	}()
	return <-done
}
