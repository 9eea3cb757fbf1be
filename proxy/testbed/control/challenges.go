package main

import (
	"net"
	"strings"

	"github.com/miekg/dns"
)

// serveChallenges answers the ACME server's questions: the TXT records that nodes had set, and nothing else.
func serveChallenges(t *tailnet, addresses []string, port string) error {
	handler := dns.HandlerFunc(func(w dns.ResponseWriter, question *dns.Msg) {
		answer := new(dns.Msg)
		answer.SetReply(question)
		answer.Authoritative = true
		for _, q := range question.Question {
			if q.Qtype != dns.TypeTXT {
				continue
			}
			for _, value := range t.challenge(strings.ToLower(strings.TrimSuffix(q.Name, "."))) {
				answer.Answer = append(answer.Answer, &dns.TXT{
					Hdr: dns.RR_Header{Name: q.Name, Rrtype: dns.TypeTXT, Class: dns.ClassINET},
					Txt: []string{value},
				})
			}
		}
		w.WriteMsg(answer)
	})
	for _, address := range addresses {
		packets, err := net.ListenPacket("udp", net.JoinHostPort(address, port))
		if err != nil {
			return err
		}
		streams, err := net.Listen("tcp", net.JoinHostPort(address, port))
		if err != nil {
			return err
		}
		go (&dns.Server{PacketConn: packets, Handler: handler}).ActivateAndServe()
		go (&dns.Server{Listener: streams, Handler: handler}).ActivateAndServe()
	}
	return nil
}
