package netguard_test

import (
	"context"
	"net"
	"net/netip"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/source/netguard"
)

// connect is the function that a dialer calls before it connects.
var connect = netguard.Dialer(net.Dialer{}, false).Control

func TestAddressesOfThisMachineAndOfCloudsAreRefused(t *testing.T) {
	for _, address := range []string{
		"127.0.0.1", "127.8.9.10", "::1", "0.0.0.0", "0.1.2.3", "::", "169.254.169.254", "169.254.1.1", "fe80::1", "fe80::1%eth0",
		"224.0.0.1", "239.1.1.1", "ff02::1", "ff01::1", "255.255.255.255", "100.100.100.200", "168.63.129.16", "192.0.0.192",
		"fd00:ec2::254", "fd20:ce::254", "fd00:42::42", "fec0::1",
		"::ffff:127.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1", "64:ff9b::7f00:1", "64:ff9b::169.254.169.254", "2002:7f00:1::", "2002:a9fe:a9fe::1",
	} {
		g := NewWithT(t)
		g.Expect(netguard.Check(netip.MustParseAddr(address))).To(MatchError(netguard.ErrRefused), address)
		g.Expect(netguard.CheckHost(address)).To(MatchError(netguard.ErrRefused), address)
		g.Expect(connect("tcp", net.JoinHostPort(address, "443"), nil)).To(MatchError(netguard.ErrRefused), address)
	}
	NewWithT(t).Expect(netguard.Check(netip.Addr{})).NotTo(Succeed())
	NewWithT(t).Expect(connect("tcp", "no address", nil)).NotTo(Succeed())
}

func TestAddressesOfOtherMachinesAreAllowed(t *testing.T) {
	for _, address := range []string{
		"140.82.121.4", "10.0.0.1", "172.16.0.1", "192.168.1.1", "100.64.0.1", "2606:50c0::1", "fd12::1", "64:ff9b::8c52:7904", "::ffff:10.0.0.1",
	} {
		g := NewWithT(t)
		g.Expect(netguard.Check(netip.MustParseAddr(address))).To(Succeed(), address)
		g.Expect(connect("tcp", net.JoinHostPort(address, "22"), nil)).To(Succeed(), address)
	}
	NewWithT(t).Expect(netguard.CheckHost("git.example.com")).To(Succeed())
}

// Names, and other forms of an address that a resolver accepts, are checked by the address that they resolve to.
func TestConnectionIsRefusedAfterTheNameWasResolved(t *testing.T) {
	g := NewWithT(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = listener.Close() })
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	dial := func(host string, allowed bool) error {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		conn, err := netguard.Dialer(net.Dialer{}, allowed).DialContext(ctx, "tcp", net.JoinHostPort(host, port))
		if err == nil {
			_ = conn.Close()
		}
		return err
	}
	for _, host := range []string{"localhost", "127.0.0.1", "0.0.0.0", ""} {
		g.Expect(dial(host, false)).To(MatchError(netguard.ErrRefused), host)
	}
	g.Expect(dial("localhost", true)).To(Succeed())
}
