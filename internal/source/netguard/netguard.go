// Package netguard refuses connections that tenants cause to addresses that only the controller itself may reach: services on its own
// loopback interface, on the local link of its node, and the metadata services of clouds, which hand out the credentials of the node. It
// also refuses addresses that no server has, because they are reserved.
//
// The address is checked when the connection is made, after the name was resolved. So it does not matter what the name resolved to before,
// which server redirected to it, or how an address is written.
//
// Private networks are not refused, because the git servers and sources of most clusters are there. Use NetworkPolicies to restrict them.
package netguard

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"unicode/utf8"

	"golang.org/x/net/idna"
)

// ErrRefused is in the chain of the errors of refused connections. Its text does not contain the address, because the tenant who wrote the
// name must not learn what it resolves to inside the cluster.
var ErrRefused = errors.New("the host has a loopback, link-local, multicast, reserved or metadata address, or an address in an unusual " +
	"notation, which the controller does not connect to")

// control refuses a connection to an address that Check refuses. net.Dialer calls it for each address that a name was resolved to.
func control(_, address string, _ syscall.RawConn) error {
	parsed, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("%w: not an address", ErrRefused)
	}
	return Check(parsed.Addr())
}

// Dialer returns a copy of the dialer that does not connect to an address that Check refuses, unless local addresses are allowed.
func Dialer(dialer net.Dialer, allowLocal bool) *net.Dialer {
	if !allowLocal {
		dialer.Control = control
	}
	return &dialer
}

// maxHost bounds a host in bytes. A name has at most 253 characters. The time to convert an international name is quadratic in its length:
// 25 s for 256 KiB.
const maxHost = 4 * 253

// CheckHost returns ErrRefused if the host is an IP address that Check refuses, a name of this machine (localhost), or not the name of a
// host. It resolves no name: it is meant for hosts that a proxy connects to. Dialer checks what names resolve to. IPv6 addresses are
// without brackets.
//
// A host whose last label is a number is an address for the resolvers of most systems, and no name. They do not agree about the value of
// notations other than the usual one: 0127.0.0.1 is 87.0.0.1 or 127.0.0.1, 2130706433 and 0x7f.1 are 127.0.0.1. So these are refused,
// whatever the value is.
func CheckHost(host string) error {
	if address, err := netip.ParseAddr(host); err == nil {
		return Check(address)
	}
	if len(host) > maxHost {
		return ErrRefused
	}
	if strings.ContainsFunc(host, func(r rune) bool { return r >= utf8.RuneSelf }) {
		// net/http does the same before it sends the name to a proxy. Digits and dots of other scripts become those of ASCII.
		ascii, err := idna.Lookup.ToASCII(host)
		if err != nil {
			return ErrRefused
		}
		host = ascii
	}
	name := strings.ToLower(strings.TrimRight(host, "."))
	last := name[strings.LastIndexByte(name, '.')+1:]
	switch {
	case name == "", len(name) > 253, last == "localhost", isNumber(last), strings.Trim(name, "-._0123456789abcdefghijklmnopqrstuvwxyz") != "":
		return ErrRefused
	}
	return nil
}

// isNumber reports whether the label is a decimal, octal or hexadecimal number.
func isNumber(label string) bool {
	if digits, hexadecimal := strings.CutPrefix(label, "0x"); hexadecimal {
		return strings.Trim(digits, "0123456789abcdef") == ""
	}
	return strings.Trim(label, "0123456789") == ""
}

// Check returns ErrRefused for addresses that are not those of another machine (loopback, link-local, multicast, unspecified, broadcast and
// reserved ones), and for those of metadata services. If an IPv4 address is embedded in an IPv6 address, both are checked.
func Check(address netip.Addr) error {
	address = address.WithZone("").Unmap()
	known := address.Is4() || contains(unicast, address)
	for _, form := range embeddings {
		if form.matches(address) {
			if !form.allows(address) {
				return ErrRefused
			}
			known = true
		}
	}
	if !known || contains(refused, address) {
		return ErrRefused
	}
	return nil
}

func contains(prefixes []netip.Prefix, address netip.Addr) bool {
	return slices.ContainsFunc(prefixes, func(prefix netip.Prefix) bool { return prefix.Contains(address) })
}

var (
	thisNetwork = netip.MustParsePrefix("0.0.0.0/8")

	// refused are ranges of the registries of special-purpose addresses of IANA, and metadata services. Ranges that are in use as private
	// networks are not among them: besides those of RFC 1918 and the unique local ones of IPv6 these are 100.64.0.0/10, 198.18.0.0/15 and
	// 240.0.0.0/4. The test has all ranges of the registries.
	refused = []netip.Prefix{
		thisNetwork,
		netip.MustParsePrefix("127.0.0.0/8"),        // loopback
		netip.MustParsePrefix("169.254.0.0/16"),     // link-local; most metadata services
		netip.MustParsePrefix("192.0.0.0/24"),       // protocol assignments; metadata of Oracle Cloud
		netip.MustParsePrefix("192.0.2.0/24"),       // documentation
		netip.MustParsePrefix("192.88.99.0/24"),     // relays of 6to4, deprecated
		netip.MustParsePrefix("198.51.100.0/24"),    // documentation
		netip.MustParsePrefix("203.0.113.0/24"),     // documentation
		netip.MustParsePrefix("224.0.0.0/4"),        // multicast
		netip.MustParsePrefix("255.255.255.255/32"), // broadcast
		netip.MustParsePrefix("2001::/23"),          // protocol assignments, such as Teredo
		netip.MustParsePrefix("2001:db8::/32"),      // documentation
		netip.MustParsePrefix("3fff::/20"),          // documentation

		netip.MustParsePrefix("100.100.100.200/32"),     // metadata of Alibaba Cloud
		netip.MustParsePrefix("168.63.129.16/32"),       // the node's agent of Azure
		netip.MustParsePrefix("fd00:42::42/128"),        // metadata of Scaleway
		netip.MustParsePrefix("fd00:100::100:200/128"),  // metadata of Alibaba Cloud
		netip.MustParsePrefix("fd00:a9fe:a9fe::/64"),    // metadata of Akamai (Linode)
		netip.MustParsePrefix("fd00:c1::a9fe:a9fe/128"), // metadata of Oracle Cloud
		netip.MustParsePrefix("fd00:ec2::/32"),          // metadata, credentials of pods, DNS and time of AWS
		netip.MustParsePrefix("fd20:ce::254/128"),       // metadata of Google Cloud
	}

	// unicast are the IPv6 addresses that another machine can have. All others, such as loopback, link-local and multicast ones, are
	// special or not assigned.
	unicast = []netip.Prefix{
		netip.MustParsePrefix("2000::/3"), // global
		netip.MustParsePrefix("fc00::/7"), // unique local
	}
)

// place has the indices of the bytes of an IPv4 address in an IPv6 address.
type place [4]int

// embedding is a form of IPv6 addresses that contain an IPv4 address. IPv4-mapped addresses, which netip unmaps, are not among them.
type embedding struct {
	matches func(netip.Addr) bool
	// places are all places where the address may be.
	places []place
}

var (
	atEnd = place{12, 13, 14, 15}

	embeddings = []embedding{
		{netip.MustParsePrefix("::/96").Contains, []place{atEnd}},            // IPv4-compatible, deprecated
		{netip.MustParsePrefix("::ffff:0:0:0/96").Contains, []place{atEnd}},  // IPv4-translated (SIIT)
		{netip.MustParsePrefix("64:ff9b::/96").Contains, []place{atEnd}},     // NAT64
		{netip.MustParsePrefix("2002::/16").Contains, []place{{2, 3, 4, 5}}}, // 6to4
		{isISATAP, []place{atEnd}},
		// NAT64 of local use. The network chooses one of the places of RFC 6052.
		{netip.MustParsePrefix("64:ff9b:1::/48").Contains, []place{atEnd, {6, 7, 9, 10}, {7, 9, 10, 11}, {9, 10, 11, 12}}},
	}
)

// isISATAP reports whether the address has an interface identifier of ISATAP (RFC 5214), in any network.
func isISATAP(address netip.Addr) bool {
	bytes := address.As16()
	const universalAndGroup = 3 << 24 // bits that may be set
	return binary.BigEndian.Uint32(bytes[8:])&^universalAndGroup == 0x5efe
}

// allows reports whether the address contains an IPv4 address, and none that is refused.
func (e embedding) allows(address netip.Addr) bool {
	bytes, found := address.As16(), false
	for _, at := range e.places {
		inner := netip.AddrFrom4([4]byte{bytes[at[0]], bytes[at[1]], bytes[at[2]], bytes[at[3]]})
		switch {
		case thisNetwork.Contains(inner): // There is no address at this place.
		case contains(refused, inner):
			return false
		default:
			found = true
		}
	}
	return found
}
