// Package netguard keeps connections that tenants cause away from addresses that only the controller itself may reach: what listens on
// its own loopback interface, what is on its node's link, and the metadata services of clouds, which hand out the node's credentials.
//
// The address is checked when the connection is made, after the name was resolved. So it does not matter what a name stood for before,
// who redirected to it, or how an address is written.
//
// Private networks are not refused: that is where the git servers and sources of most clusters are. NetworkPolicies decide about those.
package netguard

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
)

// ErrRefused is in the chain of the errors of refused connections. Its text has no address in it: what a name stands for inside the
// cluster is not for whoever wrote the name.
var ErrRefused = errors.New("the host has a loopback, link-local, multicast or metadata address, which the controller does not connect to")

// control refuses a connection to an address that Check refuses. net.Dialer calls it for each address that a name was resolved to.
func control(_, address string, _ syscall.RawConn) error {
	parsed, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("%w: not an address", ErrRefused)
	}
	return Check(parsed.Addr())
}

// CheckHost refuses a host that is an address, in any form that a dialer takes for one, and that Check refuses. Names are for Dialer: it
// is meant for hosts that a proxy connects to.
func CheckHost(host string) error {
	address, err := netip.ParseAddr(host)
	if err != nil {
		return nil
	}
	return Check(address)
}

// Dialer is the dialer, which refuses to connect to an address that Check refuses unless local addresses are allowed.
func Dialer(dialer net.Dialer, allowLocal bool) *net.Dialer {
	if !allowLocal {
		dialer.Control = control
	}
	return &dialer
}

// Check returns ErrRefused for what is not the address of another machine: loopback, link-local, multicast, unspecified and broadcast
// addresses, and metadata services, also where an IPv6 address has one of these in it.
func Check(address netip.Addr) error {
	address = address.WithZone("").Unmap()
	if !address.IsValid() || address.IsLoopback() || address.IsUnspecified() || address.IsMulticast() || address.IsLinkLocalUnicast() {
		return ErrRefused
	}
	for _, prefix := range refusedPrefixes {
		if prefix.Contains(address) {
			return ErrRefused
		}
	}
	for _, form := range embedding {
		if form.prefix.Contains(address) {
			bytes := address.As16()
			return Check(netip.AddrFrom4([4]byte(bytes[form.at : form.at+4])))
		}
	}
	return nil
}

var (
	refusedPrefixes = []netip.Prefix{
		netip.MustParsePrefix("0.0.0.0/8"),          // this host
		netip.MustParsePrefix("255.255.255.255/32"), // broadcast
		netip.MustParsePrefix("100.100.100.200/32"), // metadata of Alibaba Cloud
		netip.MustParsePrefix("168.63.129.16/32"),   // the node's agent of Azure
		netip.MustParsePrefix("192.0.0.192/32"),     // metadata of Oracle Cloud
		netip.MustParsePrefix("fd00:ec2::/112"),     // metadata, DNS and time of AWS
		netip.MustParsePrefix("fd20:ce::254/128"),   // metadata of Google Cloud
		netip.MustParsePrefix("fd00:42::42/128"),    // metadata of Scaleway
		netip.MustParsePrefix("fec0::/10"),          // site-local, deprecated
	}

	// embedding are the forms of IPv6 with an address of IPv4 in them, and where it is. What netip unmaps is not among them.
	embedding = []struct {
		prefix netip.Prefix
		at     int
	}{
		{netip.MustParsePrefix("::/96"), 12},        // IPv4-compatible, deprecated
		{netip.MustParsePrefix("64:ff9b::/96"), 12}, // NAT64
		{netip.MustParsePrefix("2002::/16"), 2},     // 6to4
	}
)
