package netguard_test

import (
	"encoding/binary"
	"math/big"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"golang.org/x/net/idna"

	"github.com/stack-controller/stack-controller/internal/source/netguard"
)

// decision is what is decided about a range of addresses.
type decision int

const (
	isRefused decision = iota
	// isAllowed is a range that is used as a private network, or of servers that everybody may reach.
	isAllowed
	// asEmbedded is a range of addresses with an IPv4 address in them, which is decided on.
	asEmbedded
)

// special has all ranges of the registries of special-purpose addresses of IANA (iana-ipv4-special-registry, iana-ipv6-special-registry),
// the multicast ranges, ranges that were withdrawn, and the metadata services of clouds. Of several ranges with an address, the smallest
// decides.
var special = []struct {
	prefix   string
	decision decision
	why      string
}{
	{"0.0.0.0/8", isRefused, "this network: Linux connects to this machine"},
	{"0.0.0.0/32", isRefused, "this host"},
	{"10.0.0.0/8", isAllowed, "private"},
	{"100.64.0.0/10", isAllowed, "shared: used as a private network, for example for pods"},
	{"127.0.0.0/8", isRefused, "loopback"},
	{"169.254.0.0/16", isRefused, "link-local"},
	{"172.16.0.0/12", isAllowed, "private"},
	{"192.0.0.0/24", isRefused, "protocol assignments: no servers"},
	{"192.0.0.0/29", isRefused, "IPv4 service continuity: the gateway of this machine"},
	{"192.0.0.8/32", isRefused, "dummy address"},
	{"192.0.0.9/32", isRefused, "the nearest gateway (Port Control Protocol)"},
	{"192.0.0.10/32", isRefused, "the nearest relay (TURN)"},
	{"192.0.0.170/32", isRefused, "discovery of NAT64"},
	{"192.0.0.171/32", isRefused, "discovery of NAT64"},
	{"192.0.2.0/24", isRefused, "documentation"},
	{"192.31.196.0/24", isAllowed, "public: name servers of AS112"},
	{"192.52.193.0/24", isAllowed, "public: relays of multicast"},
	{"192.88.99.0/24", isRefused, "the nearest relay of 6to4, deprecated"},
	{"192.88.99.2/32", isRefused, "the nearest relay of 6a44"},
	{"192.168.0.0/16", isAllowed, "private"},
	{"192.175.48.0/24", isAllowed, "public: name servers of AS112"},
	{"198.18.0.0/15", isAllowed, "benchmarks: used as a private network"},
	{"198.51.100.0/24", isRefused, "documentation"},
	{"203.0.113.0/24", isRefused, "documentation"},
	{"240.0.0.0/4", isAllowed, "reserved: used as a private network, for example for pods"},
	{"255.255.255.255/32", isRefused, "broadcast"},
	{"224.0.0.0/4", isRefused, "multicast"},

	{"::1/128", isRefused, "loopback"},
	{"::/128", isRefused, "unspecified"},
	{"::ffff:0:0/96", asEmbedded, "IPv4-mapped"},
	{"64:ff9b::/96", asEmbedded, "NAT64"},
	{"64:ff9b:1::/48", asEmbedded, "NAT64 of local use"},
	{"100::/64", isRefused, "discarded"},
	{"100:0:0:1::/64", isRefused, "dummy addresses"},
	{"2001::/23", isRefused, "protocol assignments: no servers"},
	{"2001::/32", isRefused, "Teredo"},
	{"2001:1::1/128", isRefused, "the nearest gateway (Port Control Protocol)"},
	{"2001:1::2/128", isRefused, "the nearest relay (TURN)"},
	{"2001:1::3/128", isRefused, "the nearest registrar of services"},
	{"2001:2::/48", isRefused, "benchmarks"},
	{"2001:3::/32", isRefused, "relays of multicast"},
	{"2001:4:112::/48", isRefused, "name servers of AS112"},
	{"2001:10::/28", isRefused, "identifiers (ORCHID), deprecated"},
	{"2001:20::/28", isRefused, "identifiers (ORCHIDv2)"},
	{"2001:30::/28", isRefused, "identifiers of drones"},
	{"2001:db8::/32", isRefused, "documentation"},
	{"2002::/16", asEmbedded, "6to4"},
	{"2620:4f:8000::/48", isAllowed, "public: name servers of AS112"},
	{"3fff::/20", isRefused, "documentation"},
	{"5f00::/16", isRefused, "identifiers of segments (SRv6)"},
	{"fc00::/7", isAllowed, "private"},
	{"fe80::/10", isRefused, "link-local"},
	{"ff00::/8", isRefused, "multicast"},

	{"::/96", asEmbedded, "IPv4-compatible, withdrawn"},
	{"::ffff:0:0:0/96", asEmbedded, "IPv4-translated (SIIT), withdrawn"},
	{"::ffff:0:0/95", isRefused, "not assigned"},
	{"200::/7", isRefused, "NSAP, withdrawn"},
	{"fec0::/10", isRefused, "site-local, withdrawn"},
	{"4000::/3", isRefused, "not assigned"},
	{"e000::/4", isRefused, "not assigned"},

	{"100.100.100.200/32", isRefused, "metadata of Alibaba Cloud"},
	{"168.63.129.16/32", isRefused, "the node's agent of Azure"},
	{"fd00:42::42/128", isRefused, "metadata of Scaleway"},
	{"fd00:100::100:200/128", isRefused, "metadata of Alibaba Cloud"},
	{"fd00:a9fe:a9fe::/64", isRefused, "metadata of Akamai"},
	{"fd00:c1::a9fe:a9fe/128", isRefused, "metadata of Oracle Cloud"},
	{"fd00:ec2::/32", isRefused, "metadata of AWS"},
	{"fd20:ce::254/128", isRefused, "metadata of Google Cloud"},

	{"0.0.0.0/0", isAllowed, "everything else"},
	{"2000::/3", isAllowed, "everything else that is assigned"},
}

// localNAT64 is the form in which the network chooses the place.
const localNAT64 = "NAT64 of local use"

// embedders put an IPv4 address into an IPv6 address, in each form that there is.
var embedders = map[string]func(v4 [4]byte) string{
	"mapped":                     atEndOf("::ffff:0:0"),
	"compatible":                 atEndOf("::"),
	"translated":                 atEndOf("::ffff:0:0:0"),
	"NAT64":                      atEndOf("64:ff9b::"),
	localNAT64:                   atEndOf("64:ff9b:1::"),
	localNAT64 + ", in a subnet": atEndOf("64:ff9b:1:fffe:0:1::"),
	localNAT64 + ", /48":         at("64:ff9b:1::", 6, 7, 9, 10),
	localNAT64 + ", /48, suffix": at("64:ff9b:1::a00:1", 6, 7, 9, 10),
	localNAT64 + ", /56":         at("64:ff9b:1:100::", 7, 9, 10, 11),
	localNAT64 + ", /64":         at("64:ff9b:1:1::", 9, 10, 11, 12),
	"6to4":                       at("2002::1", 2, 3, 4, 5),
	"ISATAP":                     atEndOf("2606:50c0::5efe:0:0"),
	"ISATAP, universal":          atEndOf("2606:50c0::200:5efe:0:0"),
	"ISATAP of a unique network": atEndOf("fd12::200:5efe:0:0"),
}

func at(base string, places ...int) func(v4 [4]byte) string {
	return func(v4 [4]byte) string {
		bytes := netip.MustParseAddr(base).As16()
		for i, place := range places {
			bytes[place] = v4[i]
		}
		return netip.AddrFrom16(bytes).String()
	}
}

func atEndOf(base string) func(v4 [4]byte) string { return at(base, 12, 13, 14, 15) }

// samples are the first, the last and the middle address of a range.
func samples(prefix netip.Prefix) []netip.Addr {
	first := prefix.Addr().As16()
	last, middle := first, first
	start := 0
	if prefix.Addr().Is4() {
		start = 96
	}
	for bit := start + prefix.Bits(); bit < 128; bit++ {
		last[bit/8] |= 0x80 >> (bit % 8)
	}
	number := new(big.Int).Add(new(big.Int).SetBytes(first[:]), new(big.Int).SetBytes(last[:]))
	number.Rsh(number, 1).FillBytes(middle[:])
	found := []netip.Addr{netip.AddrFrom16(first), netip.AddrFrom16(middle), netip.AddrFrom16(last)}
	if start > 0 {
		for i := range found {
			found[i] = found[i].Unmap()
		}
	}
	return found
}

// decided returns the decision of the table.
func decided(address netip.Addr) (found decision, why string) {
	longest := -1
	for _, row := range special {
		if prefix := netip.MustParsePrefix(row.prefix); prefix.Contains(address) && prefix.Bits() > longest {
			found, why, longest = row.decision, row.why, prefix.Bits()
		}
	}
	return found, why
}

func TestEveryRangeOfSpecialAddressesIsDecidedOn(t *testing.T) {
	for _, row := range special {
		for _, address := range samples(netip.MustParsePrefix(row.prefix)) {
			want, why := decided(address)
			if want == asEmbedded {
				continue // see TestAddressesInOtherAddressesAreDecidedOn
			}
			g := NewWithT(t)
			g.Expect(netguard.Check(address) == nil).To(Equal(want == isAllowed), "%s, %s", address, why)
			g.Expect(netguard.CheckHost(address.String()) == nil).To(Equal(want == isAllowed), "%s, %s", address, why)
			g.Expect(connect("tcp", net.JoinHostPort(address.String(), "443"), nil) == nil).To(Equal(want == isAllowed), "%s, %s", address, why)
		}
	}
}

func TestAddressesInOtherAddressesAreDecidedOn(t *testing.T) {
	for _, row := range special {
		prefix := netip.MustParsePrefix(row.prefix)
		if !prefix.Addr().Is4() {
			continue
		}
		for _, inner := range samples(prefix) {
			want, why := decided(inner)
			for form, embed := range embedders {
				if strings.HasPrefix(form, localNAT64+",") && (want == isAllowed || netip.MustParsePrefix("0.0.0.0/8").Contains(inner)) {
					continue // The address at another place decides.
				}
				address := embed(inner.As4())
				g := NewWithT(t)
				g.Expect(netguard.Check(netip.MustParseAddr(address)) == nil).To(Equal(want == isAllowed), "%s: %s, %s, %s", form, address, inner, why)
				g.Expect(netguard.CheckHost(address) == nil).To(Equal(want == isAllowed), "%s: %s, %s, %s", form, address, inner, why)
			}
		}
	}
}

// unusual are hosts that resolvers, proxies or libraries understand as an address, in other notations than the usual one.
var unusual = []string{
	"2130706433", "0x7f000001", "0X7F000001", "017700000001", "127.1", "127.0.1", "0x7f.1", "0177.0.0.1", "0177.1", "127.0.0.01", "127.0.0.1.",
	"127.0.0.1..", "127.0.0.0x1", "2852039166", "0xa9fea9fe", "0251.0376.0251.0376", "169.254.43518", "0x", "0", "00", "0.", "0127.0.0.1", "256", "1.2.3.4.5",
	"4294967296", "08.0.0.1", "127.0.0.1.0x0",
	"１２７.0.0.1", "127。0。0。1", "127．0．0．1", "①②⑦.0.0.1", "𝟏𝟐𝟕.0.0.1", "０ｘ７ｆ.1", "loca\u00adlhost", "ⓛocalhost",
	"localhost", "LOCALHOST", "localhost.", "a.localhost", "",
	"127.0.0.1 ", " 127.0.0.1", "127.0.0.1\t", "127.0.0.1\x00.example.com", "%31%32%37.0.0.1", "127.0.0.1%eth0", "127.0.0.1/8", "127.0.0.1;a", "127.0.0.1,a",
	strings.Repeat("a.", 127) + "a", strings.Repeat("\u4e00", 300),
	"[::1]", "::1%", "::7f00:0001:", "0:0:0:0:0:ffff:7f.1", "user@127.0.0.1", "a\\127.0.0.1",
}

func TestAddressesInUnusualNotationsAreRefused(t *testing.T) {
	for _, host := range unusual {
		NewWithT(t).Expect(netguard.CheckHost(host)).To(MatchError(netguard.ErrRefused), "%q", host)
	}
}

func TestNamesAreAllowed(t *testing.T) {
	for _, host := range []string{
		"git.example.com", "git.example.com.", "GIT.example.com", "git", "1password.com", "10.0.0.1.nip.io", "127.0.0.1.example", "0x7f.example", "my_host.corp",
		strings.Repeat("a.", 126) + "a", "localhost.example.com", "notlocalhost", "bücher.example", "xn--bcher-kva.example", "0xyz", "a--b.c0", "2001-db8--1.example",
	} {
		NewWithT(t).Expect(netguard.CheckHost(host)).To(Succeed(), host)
	}
}

// TestLongHostIsRefusedAtOnce would take a minute: the time to convert an international name is quadratic in its length.
func TestLongHostIsRefusedAtOnce(t *testing.T) {
	var host strings.Builder
	for r := rune(0x4e00); host.Len() < 256<<10; r = 0x4e00 + (r+1-0x4e00)%0x5000 {
		host.WriteRune(r)
	}
	allocated := testing.AllocsPerRun(1, func() {
		NewWithT(t).Expect(netguard.CheckHost(host.String())).To(MatchError(netguard.ErrRefused))
	})
	NewWithT(t).Expect(allocated).To(BeNumerically("<", 100))
}

// readings are the addresses that resolvers, proxies and libraries may read from a host: one to four numbers, decimal, octal or hexadecimal,
// the last of which fills the rest. Some read numbers that begin with a zero as decimal.
func readings(host string) (found []netip.Addr) {
	parts := strings.Split(strings.ToLower(strings.TrimRight(host, ".")), ".")
	if len(parts) > 4 || strings.Contains(host, "_") {
		return nil
	}
	for _, read := range []func(part string) (uint64, error){
		func(part string) (uint64, error) { return strconv.ParseUint(part, 0, 32) },
		func(part string) (uint64, error) { return strconv.ParseUint(part, 10, 32) },
	} {
		var value uint64
		valid := true
		for i, part := range parts {
			number, err := read(part)
			shift, bits := 24-8*i, 8
			if i == len(parts)-1 {
				shift, bits = 0, 32-8*i
			}
			valid = valid && err == nil && number < 1<<bits && !strings.HasPrefix(part, "0b") && !strings.HasPrefix(part, "0o")
			value |= number << shift
		}
		if valid {
			found = append(found, netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, uint32(value)))))
		}
	}
	return found
}

// FuzzHost checks that a host that CheckHost accepts is not an address that the dialer refuses, whoever reads it.
func FuzzHost(f *testing.F) {
	for _, host := range unusual {
		f.Add(host)
	}
	for _, row := range special {
		f.Add(netip.MustParsePrefix(row.prefix).Addr().String())
	}
	f.Fuzz(func(t *testing.T, host string) {
		accepted := netguard.CheckHost(host) == nil
		if !accepted && len(host) > 1000 {
			return // To convert it would take too long.
		}
		sent := []string{host, strings.TrimRight(host, ".")}
		// What net/http sends to a proxy.
		if ascii, err := idna.Lookup.ToASCII(host); err == nil {
			sent = append(sent, ascii)
		}
		for _, name := range sent {
			found := readings(name)
			if address, err := netip.ParseAddr(name); err == nil {
				found = append(found, address)
			}
			for _, address := range found {
				if accepted && connect("tcp", netip.AddrPortFrom(address, 443).String(), nil) != nil {
					t.Fatalf("%q is accepted, and may be read as %s", host, address)
				}
			}
			if strings.EqualFold(name, "localhost") && accepted {
				t.Fatalf("%q is accepted", host)
			}
		}
	})
}

// FuzzAddress checks that an address in another address is never better than by itself.
func FuzzAddress(f *testing.F) {
	for _, row := range special {
		address := netip.MustParsePrefix(row.prefix).Addr().As16()
		f.Add(address[:])
	}
	f.Fuzz(func(t *testing.T, bytes []byte) {
		address, ok := netip.AddrFromSlice(bytes)
		if !ok {
			return
		}
		if accepted := netguard.Check(address) == nil; accepted && (!address.IsGlobalUnicast() || netguard.CheckHost(address.String()) != nil) {
			t.Fatalf("%s is accepted", address)
		}
		if !address.Is4() || netguard.Check(address) == nil {
			return
		}
		for form, embed := range embedders {
			// Where an operator chooses the place, an address of this network is none.
			if inner := embed(address.As4()); netguard.Check(netip.MustParseAddr(inner)) == nil && bytes[0] != 0 {
				t.Fatalf("%s is accepted in the form %s", address, form)
			}
		}
	})
}
