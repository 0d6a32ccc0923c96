package informercache

import (
	"reflect"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

const (
	// mapCost is what a map takes beside its entries, in bytes, and entryCost what it notes of each. Room for entries comes in powers of two, and
	// for fewEntries at least, even if there is one.
	mapCost, entryCost, fewEntries = 48, 1, 8
	// tokenCost is what a value takes when it is decoded from JSON, in bytes, beside its text: part of a list or of a map.
	tokenCost = 32
)

var (
	rawJSON = reflect.TypeFor[apiextensionsv1.JSON]()
	// instant points to the zone of the process, which all share, and which may be about to be read from its file.
	instant = reflect.TypeFor[time.Time]()
)

// memoryOf returns about how much memory a value takes, in bytes, with all that it points to. It counts no further than the limit. What
// the API server accepts as 3 bytes of JSON, an empty item of a list, may be hundreds of bytes as a value of a Go type.
func memoryOf(value any, limit int) int {
	left := limit
	count(reflect.ValueOf(value), &left)
	return limit - left
}

// count takes what a value points to off what is left, until nothing is.
func count(value reflect.Value, left *int) {
	if *left < 0 || !value.IsValid() {
		return
	}
	switch value.Kind() {
	case reflect.String:
		*left -= value.Len()
	case reflect.Pointer, reflect.Interface:
		if !value.IsNil() {
			*left -= int(value.Elem().Type().Size())
			count(value.Elem(), left)
		}
	case reflect.Struct:
		switch value.Type() {
		case rawJSON:
			*left -= decodedSize(value.Field(0).Bytes())
			return
		case instant:
			return
		}
		for i := range value.NumField() {
			count(value.Field(i), left)
		}
	case reflect.Slice:
		*left -= value.Len() * int(value.Type().Elem().Size())
		if holdsMore(value.Type().Elem()) {
			for i := 0; i < value.Len() && *left >= 0; i++ {
				count(value.Index(i), left)
			}
		}
	case reflect.Map:
		if value.IsNil() {
			return
		}
		entry := entryCost + int(value.Type().Key().Size()+value.Type().Elem().Size())
		*left -= mapCost + roomFor(value.Len())*entry
		for entries := value.MapRange(); entries.Next() && *left >= 0; {
			count(entries.Key(), left)
			count(entries.Value(), left)
		}
	}
}

// roomFor returns for how many entries a map has room that has so many. A table of more than fewEntries is never full: one in eight is free.
func roomFor(entries int) int {
	if entries == 0 {
		return 0
	}
	room := fewEntries
	for entries > fewEntries && room*7/8 < entries {
		room *= 2
	}
	return room
}

// holdsMore reports whether a value of the type may point to something.
func holdsMore(kind reflect.Type) bool {
	switch kind.Kind() {
	case reflect.String, reflect.Pointer, reflect.Interface, reflect.Struct, reflect.Slice, reflect.Map, reflect.Array:
		return true
	}
	return false
}

// decodedSize is what JSON takes as text and, when somebody looks into it, decoded.
func decodedSize(text []byte) int {
	size := len(text)
	for _, char := range text {
		switch char {
		case '{', '[', ',', ':':
			size += tokenCost
		}
	}
	return size
}
