// Package netguard refuses connections that tenants cause to addresses that only the controller itself may reach: services on its own
// loopback interface, on the local link of its node, and the metadata services of clouds, which hand out the credentials of the node.
//
// The address is checked when the connection is made, after the name was resolved. So it does not matter what the name resolved to before,
// which server redirected to it, or how an address is written.
//
// Private networks are not refused, because the git servers and sources of most clusters are there. Use NetworkPolicies to restrict them.
package netguard

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
)

// ErrRefused is in the chain of the errors of refused connections. Its text does not contain the address, because the tenant who wrote the
// name must not learn what it resolves to inside the cluster.
var ErrRefused = errors.New("the host has a loopback, link-local, multicast or metadata address, which the controller does not connect to")

// control refuses a connection to an address that Check refuses. net.Dialer calls it for each address that a name was resolved to.
func control(_, address string, _ syscall.RawConn) error {
	parsed, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("%w: not an address", ErrRefused)
	}
	return Check(parsed.Addr())
}

// CheckHost returns ErrRefused if the host is an IP address that Check refuses. It accepts every name, because it resolves none: it is
// meant for hosts that a proxy connects to. Dialer checks names.
func CheckHost(host string) error {
	address, err := netip.ParseAddr(host)
	if err != nil {
		return nil
	}
	return Check(address)
}

// Dialer returns a copy of the dialer that does not connect to an address that Check refuses, unless local addresses are allowed.
func Dialer(dialer net.Dialer, allowLocal bool) *net.Dialer {
	if !allowLocal {
		dialer.Control = control
	}
	return &dialer
}

// Check returns ErrRefused for addresses that are not those of another machine (loopback, link-local, multicast, unspecified and
// broadcast), and for those of metadata services, also if the address is embedded in an IPv6 address.
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

	// embedding are the prefixes of IPv6 addresses that contain an IPv4 address, and the index of its first byte. IPv4-mapped addresses,
	// which netip unmaps, are not among them.
	embedding = []struct {
		prefix netip.Prefix
		at     int
	}{
		{netip.MustParsePrefix("::/96"), 12},        // IPv4-compatible, deprecated
		{netip.MustParsePrefix("64:ff9b::/96"), 12}, // NAT64
		{netip.MustParsePrefix("2002::/16"), 2},     // 6to4
	}
)
